"""Plugins that fail in runner processes are in the result as those of this process are."""

import asyncio
from typing import Any

import pytest
from lightning_http.child import FAILED_HOOKS, ReportingStore
from lightning_http.processes import ProcessesStrategy

from lightning_core.execution import ExecutionStrategy, LocalStrategy
from lightning_core.runs.result import FailedHook, failed_hooks
from lightning_core.store import InMemoryLightningStore
from lightning_core.trainer import Trainer
from lightning_core.types import Worker

pytestmark = pytest.mark.usefixtures("process_agents", "no_process_left")


@pytest.mark.parametrize(
    "strategy",
    [
        pytest.param(LocalStrategy(n_runners=2), id="local"),
        pytest.param(ProcessesStrategy(n_runners=2, concurrency=2), id="processes"),
        pytest.param(ProcessesStrategy(main_process="runner"), id="runner here"),
    ],
)
@pytest.mark.parametrize("name", ["Failing", "StayingFailing"])
def test_plugin_that_fails_is_in_the_result_wherever_runners_are(strategy: ExecutionStrategy, name: str):
    import process_agents

    trainer = Trainer(algorithm="baseline", strategy=strategy, hooks=[getattr(process_agents, name)()])
    result = trainer.fit(process_agents.double, [1, 2, 3])
    assert result.rollouts.succeeded == 3
    found = {each.hook: each for each in result.failed_hooks}
    began = found.pop("lightning_rollout_start")
    assert (began.plugin, began.count) == (name, 3)
    assert began.cause in ("LookupError: no 2", "OSError: no")
    told = "ValueError: reward 4.0, spans 2, succeeded, succeeded"
    assert found == {
        "lightning_rollout_end": FailedHook(name, "lightning_rollout_end", told, 1),
        "lightning_run_end": FailedHook(name, "lightning_run_end", "RuntimeError: succeeded", 1),
    }


def test_class_that_stays_is_the_one_that_was_told_of_the_run():
    import process_agents

    class Staying:
        stays_with_algorithm = True

        def lightning_run_start(self, run_id: str) -> None:
            self.run_id = run_id

        def lightning_rollout_end(self, rollout: Any) -> None:
            raise LookupError(self.run_id)

    trainer = Trainer(algorithm="baseline", strategy=ProcessesStrategy(), hooks=[Staying])
    result = trainer.fit(process_agents.double, [1])
    assert [each.cause for each in result.failed_hooks] == [f"LookupError: {result.run_id}"]


def failed(count: int) -> list[dict[str, Any]]:
    return [{"plugin": "P", "hook": "h", "cause": "E: e", "count": count}] if count else []


async def test_one_worker_of_a_process_tells_with_its_heartbeats_and_before_it_asks_for_work():
    store = InMemoryLightningStore()
    count = 0
    reporting = ReportingStore(store, lambda: failed(count))

    async def told() -> list[tuple[str, Any]]:
        return [(each.worker_id, each.heartbeat_stats) for each in await store.query_workers()]

    await reporting.update_worker("w-0", {"cpu": 1})
    await reporting.update_worker("w-1", {"cpu": 2})
    assert await told() == [("w-0", {"cpu": 1}), ("w-1", {"cpu": 2})]
    count = 1
    await reporting.dequeue_rollout("w-1")
    assert await told() == [("w-0", {"cpu": 1, FAILED_HOOKS: failed(1)}), ("w-1", {"cpu": 2})]
    count = 2
    await reporting.update_worker("w-1", {"cpu": 3})
    await reporting.update_worker("w-0", {"cpu": 4})
    assert await told() == [("w-0", {"cpu": 4, FAILED_HOOKS: failed(2)}), ("w-1", {"cpu": 3})]
    await reporting.dequeue_many_rollouts(worker_id="w-0")
    assert len(await told()) == 2


async def test_worker_without_heartbeats_is_not_given_a_lease():
    store = InMemoryLightningStore()
    reporting = ReportingStore(store, lambda: failed(1))
    await store.enqueue_rollout("a")
    await reporting.dequeue_rollout("w-0")
    await reporting.tell()
    (worker,) = await store.query_workers()
    assert (worker.heartbeat_stats, worker.last_heartbeat_time) == (None, None)


def test_plugin_that_cannot_be_loaded_is_counted_once_however_many_processes_there_are():
    unloaded = {"plugin": "P", "hook": None, "cause": "E: e", "count": 1}
    workers = [Worker(worker_id=f"w-{number}", heartbeat_stats={FAILED_HOOKS: [unloaded]}) for number in range(3)]
    assert failed_hooks([], [], workers=workers) == [FailedHook("P", None, "E: e", 1)]


def test_counts_of_processes_add_up():
    workers = [Worker(worker_id=f"w-{number}", heartbeat_stats={FAILED_HOOKS: failed(2)}) for number in range(3)]
    assert failed_hooks([], [], workers=workers) == [FailedHook("P", "h", "E: e", 6)]


def test_store_that_is_out_of_reach_is_left_to_the_claim(caplog: pytest.LogCaptureFixture):
    store = InMemoryLightningStore()
    count = 0

    async def claim() -> None:
        nonlocal count
        reporting = ReportingStore(store, lambda: failed(count))
        await reporting.update_worker("w-0", {})
        count = 1
        await store.aclose()
        await reporting.dequeue_rollout("w-0")

    with pytest.raises(Exception, match="closed"):
        asyncio.run(claim())
    assert "lightning.failed_hooks_not_told worker_id=w-0" in caplog.text
