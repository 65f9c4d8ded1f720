"""The memory store keeps the promises of every store, and its own."""

import gc
import threading

from lightning_core import lifecycle
from lightning_core.lifecycle import RolloutRecord
from lightning_core.store import InMemoryLightningStore, LightningStore, StoreFacade
from lightning_core.store.backend import Change
from lightning_core.store.memory import MemoryBackend
from lightning_core.store.waits import Listeners
from lightning_core.testing import FakeClock, StoreSuite
from lightning_core.testing.store.base import present, span_of
from lightning_core.types import Rollout, RolloutConfig


class TestInMemoryLightningStore(StoreSuite):
    async def make_store(self, *, clock: FakeClock, run_id: str) -> LightningStore:
        return InMemoryLightningStore(clock=clock, run_id=run_id)


async def test_a_store_makes_its_own_run_id_and_keeps_real_time() -> None:
    one, two = InMemoryLightningStore(), InMemoryLightningStore()
    assert one.run_id != two.run_id
    assert await one.dequeue_rollout(wait_seconds=0.001) is None
    assert (await one.statistics())["name"] == "InMemoryLightningStore"
    assert one.capabilities == {"thread_safe": True, "async_safe": True, "zero_copy": True, "otlp_traces": False}


# What it costs


async def test_deleted_rollouts_leave_nothing_behind() -> None:
    backend = MemoryBackend()
    store = StoreFacade(backend, run_id="run-1")
    assert await store.dequeue_rollout() is None  # the first claim looks whether the run has ended
    for number in range(10):
        config = RolloutConfig(timeout_seconds=1000 + number)
        await store.enqueue_rollout(number, config=config, request_id=f"enqueue-{number}")
        claimed = present(await store.dequeue_rollout(request_id=f"claim-{number}"))
        await store.add_span(span_of(claimed))
        await store.update_attempt(claimed.rollout_id, "latest", status="succeeded")
        await store.delete_rollouts([claimed.rollout_id])
    run = backend._runs["run-1"]
    for kept in (run.records, run.ordinals, run.timed, run.spans, run.claims, run.claimed_by, run.queue):
        assert len(kept) == 0
    assert (run.span_count, run.attempt_count, any(run.documents.values())) == (0, 0, False)
    assert await backend.next_deadline("run-1") is None
    assert run.deadlines == []


async def test_heartbeats_do_not_make_the_deadlines_grow() -> None:
    backend = MemoryBackend()
    config = RolloutConfig(timeout_seconds=1e9, unresponsive_seconds=10)
    for number in range(10):
        rollout = Rollout(rollout_id=f"ro-{number}", input=None, start_time=0.0, config=config)
        record = RolloutRecord("run-1", rollout)
        record = lifecycle.begin_attempt(record, 0.0, attempt_id=f"at-{number}", worker_id=None)
        await backend.insert([record])
    for beat in range(100_000):
        kept = present(await backend.get("run-1", f"ro-{beat % 10}"))
        now = beat / 1000
        assert await backend.replace(kept, lifecycle.heartbeat(kept, now, f"at-{beat % 10}"))
        if beat % 100 == 0:
            assert await backend.due("run-1", now) == []
    assert len(backend._runs["run-1"].deadlines) == 10
    assert len(await backend.due("run-1", 110.0)) == 10


async def test_a_run_that_was_only_asked_about_leaves_nothing_behind() -> None:
    backend = MemoryBackend()
    store = StoreFacade(backend, run_id="run-1")
    view = store.for_run("run-2")
    assert await view.get_rollout_by_id("ro-1") is None
    assert await view.dequeue_rollout() is None
    assert await view.get_latest_resources() is None
    assert await view.load_state("apo") is None
    assert (await view.query_workers()).total == 0
    assert await view.delete_rollouts(["ro-1"]) == 0
    await view.delete_run()
    await view.aclose()
    assert await backend.count("run-3") == dict.fromkeys(("rollouts", "attempts", "spans", "resources", "workers"), 0)
    assert backend._runs == {}
    await store.for_run("run-4").enqueue_rollout("a")
    gc.collect()  # the view is forgotten, and what it wrote is not
    assert (await store.for_run("run-4").query_rollouts()).total == 1


def test_listener_may_go_while_another_one_goes() -> None:
    """A garbage collection may end a forgotten listener at any moment, in the thread that it interrupts."""
    listeners, heard = Listeners(), list[Change]()
    stop_first = listeners.add("run-1", heard.append)

    class Interrupted:
        def __call__(self, change: Change) -> None: ...

        def __eq__(self, other: object) -> bool:
            stop_first()
            return self is other

        __hash__ = None  # type: ignore[assignment]

    listeners.add("run-2", Interrupted())
    stopping = threading.Thread(target=listeners.add("run-2", Interrupted()), daemon=True)
    stopping.start()
    stopping.join(20)
    assert not stopping.is_alive()
    assert listeners.runs() == ["run-2"]
