"""The memory store keeps the promises of every store, and its own."""

import gc
import threading
from collections.abc import Awaitable
from typing import Any

import pytest

from lightning_core import lifecycle
from lightning_core.errors import StoreFull
from lightning_core.lifecycle import RolloutRecord
from lightning_core.store import InMemoryLightningStore, LightningStore, StoreFacade
from lightning_core.store.backend import Change
from lightning_core.store.memory import MemoryBackend
from lightning_core.store.waits import Listeners
from lightning_core.testing import FakeClock, StoreSuite
from lightning_core.testing.store.base import span_of
from lightning_core.types import EnqueueRolloutRequest, Rollout, RolloutConfig


class TestInMemoryLightningStore(StoreSuite):
    async def make_store(self, *, clock: FakeClock, run_id: str) -> LightningStore:
        return InMemoryLightningStore(clock=clock, run_id=run_id)


async def test_a_store_makes_its_own_run_id_and_keeps_real_time() -> None:
    one, two = InMemoryLightningStore(), InMemoryLightningStore()
    assert one.run_id != two.run_id
    assert await one.dequeue_rollout(wait_seconds=0.001) is None
    assert (await one.statistics())["name"] == "InMemoryLightningStore"
    assert one.capabilities == {"thread_safe": True, "async_safe": True, "zero_copy": True, "otlp_traces": False}


# Limits


async def refused(call: Awaitable[Any], message: str) -> None:
    with pytest.raises(StoreFull, match=message):
        await call


async def everything(store: LightningStore) -> list[Any]:
    return [list(await store.query_rollouts()), list(await store.query_workers()), await store.statistics()]


async def test_a_full_store_refuses_rollouts_and_keeps_what_it_has() -> None:
    store = InMemoryLightningStore(max_rollouts=3, clock=FakeClock())
    await store.enqueue_many_rollouts([EnqueueRolloutRequest(input=i) for i in range(2)])
    before = await everything(store)
    two = [EnqueueRolloutRequest(input=i) for i in range(2)]
    await refused(
        store.enqueue_many_rollouts(two),
        r"the store holds 2 rollouts, and 2 more would exceed its max_rollouts of 3; "
        r"delete what has ended \(delete_rollouts\), or open the store with a larger max_rollouts",
    )
    assert await everything(store) == before
    await store.enqueue_rollout("third")
    before = await everything(store)
    await refused(store.enqueue_rollout("a"), "holds 3 rollouts, and 1 more")
    await refused(store.start_rollout("a", worker_id="w-1"), "holds 3 rollouts, and 1 more")
    assert await everything(store) == before


async def test_a_full_store_goes_on_with_what_it_has_and_takes_more_after_a_deletion() -> None:
    store = InMemoryLightningStore(max_rollouts=1, max_spans=1)
    queued = await store.enqueue_rollout("a")
    claimed = await store.dequeue_rollout("w-1")
    assert claimed is not None
    await store.add_span(span_of(claimed))
    again = await store.start_attempt(queued.rollout_id)
    await store.update_attempt(queued.rollout_id, again.attempt.attempt_id, status="succeeded")
    await refused(store.enqueue_rollout("b"), "max_rollouts of 1")
    await store.delete_rollouts([queued.rollout_id])
    started = await store.start_rollout("b")
    assert await store.add_span(span_of(started)) is not None


async def test_a_full_store_refuses_spans_and_keeps_none_of_them() -> None:
    store = InMemoryLightningStore(max_spans=3)
    started, other = await store.start_rollout("a"), await store.start_rollout("b")
    await store.add_many_spans([span_of(started) for _ in range(2)])
    await refused(
        store.add_many_spans([span_of(other), span_of(started)]),
        r"the store holds 2 spans, and 2 more would exceed its max_spans of 3; delete what has ended",
    )
    assert (await store.statistics())["total_spans"] == 2
    latest = await store.get_latest_attempt(other.rollout_id)
    assert latest is not None
    assert (latest.status, latest.last_heartbeat_time) == ("preparing", None)
    third = await store.add_span(span_of(started))
    assert third is not None
    assert third.sequence_id == 3


async def test_the_limits_count_all_runs_together() -> None:
    store = InMemoryLightningStore(max_rollouts=2, max_spans=1)
    other = store.for_run("another-run")
    started, theirs = await store.start_rollout("a"), await other.start_rollout("b")
    await other.add_span(span_of(theirs))
    await refused(store.enqueue_rollout("c"), "holds 2 rollouts")
    await refused(store.add_span(span_of(started)), "holds 1 spans")
    await other.delete_run()
    await store.enqueue_rollout("c")
    await store.add_span(span_of(started))
    held = await store.statistics()
    assert (held["total_rollouts"], held["total_spans"]) == (2, 1)


# What it costs


async def test_deleted_rollouts_leave_nothing_behind() -> None:
    backend = MemoryBackend()
    store = StoreFacade(backend, run_id="run-1")
    assert await store.dequeue_rollout() is None  # the first claim looks whether the run has ended
    for number in range(10):
        config = RolloutConfig(timeout_seconds=1000 + number)
        await store.enqueue_rollout(number, config=config, request_id=f"enqueue-{number}")
        claimed = await store.dequeue_rollout(request_id=f"claim-{number}")
        assert claimed is not None
        await store.add_span(span_of(claimed))
        await store.update_attempt(claimed.rollout_id, "latest", status="succeeded")
        await store.delete_rollouts([claimed.rollout_id])
    run = backend._runs["run-1"]
    for kept in (run.records, run.ordinals, run.tickets, run.timed, run.spans, run.claims, run.claimed_by, run.queue):
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
        present = await backend.get("run-1", f"ro-{beat % 10}")
        assert present is not None
        now = beat / 1000
        assert await backend.replace(present, lifecycle.heartbeat(present, now, f"at-{beat % 10}"))
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
