"""Plugins that fail in runner processes are in the result as those of this process are."""

from typing import Any

import pytest
from lightning_http.processes import ProcessesStrategy

from lightning_core.execution import ExecutionStrategy, LocalStrategy
from lightning_core.runs.result import FAILED_HOOKS, FailedHook, failed_hooks
from lightning_core.trainer import Trainer
from lightning_core.types import Worker

pytestmark = pytest.mark.usefixtures("process_agents", "no_process_left")


@pytest.mark.parametrize(
    "strategy",
    [
        pytest.param(LocalStrategy(n_runners=2), id="local"),
        pytest.param(ProcessesStrategy(n_runners=2, concurrency=2), id="processes"),
    ],
)
@pytest.mark.parametrize("name", ["Failing", "StayingFailing"])
def test_plugin_that_fails_is_in_the_result_wherever_runners_are(strategy: ExecutionStrategy, name: str, agents: Any):
    trainer = Trainer(algorithm="baseline", strategy=strategy, hooks=[getattr(agents, name)()])
    result = trainer.fit(agents.double, [1, 2, 3])
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


def test_class_that_stays_is_the_one_that_was_told_of_the_run(agents: Any):
    class Staying:
        stays_with_algorithm = True

        def lightning_run_start(self, run_id: str) -> None:
            self.run_id = run_id

        def lightning_rollout_end(self, rollout: Any) -> None:
            raise LookupError(self.run_id)

    trainer = Trainer(algorithm="baseline", strategy=ProcessesStrategy(), hooks=[Staying])
    result = trainer.fit(agents.double, [1])
    assert [each.cause for each in result.failed_hooks] == [f"LookupError: {result.run_id}"]


def failed(count: int) -> list[dict[str, Any]]:
    return [{"plugin": "P", "hook": "h", "cause": "E: e", "count": count}] if count else []


def test_plugin_that_cannot_be_loaded_is_counted_once_however_many_processes_there_are():
    unloaded = {"plugin": "P", "hook": None, "cause": "E: e", "count": 1}
    workers = [Worker(worker_id=f"w-{number}", heartbeat_stats={FAILED_HOOKS: [unloaded]}) for number in range(3)]
    assert failed_hooks([], [], workers=workers) == [FailedHook("P", None, "E: e", 1)]


def test_counts_of_processes_add_up_and_those_of_the_workers_of_one_are_the_same():
    told = {"a-0": 2, "a-1": 1, "b-0": 2, "c-0": 3}
    workers = [Worker(worker_id=each, heartbeat_stats={FAILED_HOOKS: failed(count)}) for each, count in told.items()]
    assert failed_hooks([], [], workers=workers) == [FailedHook("P", "h", "E: e", 7)]
