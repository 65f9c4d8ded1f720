"""The facade over a backend that suspends in every operation, as a database does: races that memory hides."""

import asyncio
import gc
import inspect
import threading
import weakref
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from lightning_core.errors import RunEnded, StoreError
from lightning_core.lifecycle import RolloutRecord
from lightning_core.store import LightningStore, LightningStoreThreaded, StoreFacade
from lightning_core.store.backend import Change, StoreBackend
from lightning_core.store.memory import MemoryBackend
from lightning_core.testing import FakeClock, StoreSuite
from lightning_core.testing.store.base import present, soon, span_of, turn
from lightning_core.types import (
    AttemptedRollout,
    EnqueueRolloutRequest,
    NamedResources,
    PromptTemplate,
    ResourcesUpdate,
    RolloutConfig,
)


def _suspending(operation: Callable[..., Any]) -> Callable[..., Any]:
    async def suspended(self: MemoryBackend, *args: Any, **kwargs: Any) -> Any:
        assert not self.closed, f"{operation.__name__} was called on a closed backend"  # type: ignore[attr-defined]
        await asyncio.sleep(0)
        result = await operation(self, *args, **kwargs)
        await asyncio.sleep(0)
        return result

    return suspended


class SuspendingBackend(MemoryBackend):
    """Lets others run before and after each operation, and notices who calls it after its end."""

    closed = False

    async def aclose(self) -> None:
        await super().aclose()
        self.closed = True


for _name in StoreBackend.__abstractmethods__ - {"aclose"}:
    if inspect.iscoroutinefunction(_operation := getattr(MemoryBackend, _name)):
        setattr(SuspendingBackend, _name, _suspending(_operation))


class TestStoreOverASuspendingBackend(StoreSuite):
    async def make_store(self, *, clock: FakeClock, run_id: str) -> LightningStore:
        return StoreFacade(SuspendingBackend(), clock=clock, run_id=run_id)


async def test_a_close_that_is_cancelled_is_finished_by_the_next() -> None:
    class Held(SuspendingBackend):
        def __init__(self) -> None:
            super().__init__()
            self.may_answer = asyncio.Event()

        async def kept_runs(self) -> list[str]:
            await self.may_answer.wait()
            return []

    backend = Held()
    store = StoreFacade(backend)
    call, closer = (asyncio.create_task(each) for each in (store.kept_runs(), store.aclose()))
    await turn(5)
    closer.cancel()
    await asyncio.wait((closer,))
    assert closer.cancelled()
    assert not backend.closed
    closer = asyncio.create_task(store.aclose())
    await turn(5)
    backend.may_answer.set()
    await asyncio.wait_for(closer, 15)
    assert backend.closed
    assert call.result() == []


async def test_a_close_waits_for_calls_in_other_event_loops() -> None:
    class Held(MemoryBackend):
        async def kept_runs(self) -> list[str]:
            begun.set()
            await asyncio.to_thread(may_answer.wait, 15)
            answered.append(True)
            return []

        async def aclose(self) -> None:
            assert answered, "the backend was closed under a call"

    begun, may_answer, answered = threading.Event(), threading.Event(), list[bool]()
    store = StoreFacade(Held())
    call = asyncio.create_task(asyncio.to_thread(asyncio.run, store.kept_runs()))
    assert await asyncio.to_thread(begun.wait, 15)
    closer = asyncio.create_task(store.aclose())
    await turn(5)
    assert not closer.done()
    may_answer.set()
    await asyncio.wait_for(closer, 15)
    assert await call == []


async def test_whoever_loses_a_race_decides_anew() -> None:
    class Contended(MemoryBackend):
        losses = 3

        async def replace(self, old: RolloutRecord, new: RolloutRecord) -> bool:
            if self.losses:
                self.losses -= 1
                return False
            return await super().replace(old, new)

    store = StoreFacade(Contended())
    started = await store.start_rollout("a")
    assert (await store.update_attempt(started.rollout_id, "latest", status="succeeded")).status == "succeeded"


async def test_workers_hear_of_the_end_of_a_shared_run_that_cannot_be_kept() -> None:
    class Refusing(MemoryBackend):
        is_shared = True
        refuses = True

        async def put_document(self, *args: Any, **kwargs: Any) -> Any:
            if self.refuses:
                raise StoreError("no room")
            return await super().put_document(*args, **kwargs)

    backend = Refusing()
    store = StoreFacade(backend)
    waiting = asyncio.create_task(store.dequeue_rollout(wait_seconds=None))
    await turn(5)
    with pytest.raises(StoreError, match="no room"):
        await store.end_run()
    with pytest.raises(RunEnded):
        await asyncio.wait_for(waiting, 15)
    backend.refuses = False
    await store.begin_run()
    assert await store.dequeue_rollout() is None


class CountingBackend(MemoryBackend):
    """Counts what a database would be asked."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()


def _counted(name: str) -> Callable[..., Any]:
    async def counted(self: CountingBackend, *args: Any, **kwargs: Any) -> Any:
        self.calls[name] += 1
        return await getattr(MemoryBackend, name)(self, *args, **kwargs)

    return counted


for _name in {*StoreBackend.__abstractmethods__, "get_many"} - {"due"}:  # which every operation asks
    if inspect.iscoroutinefunction(getattr(MemoryBackend, _name)):
        setattr(CountingBackend, _name, _counted(_name))


async def test_a_rollout_costs_a_database_few_operations() -> None:
    backend = CountingBackend()
    store = StoreFacade(backend)
    await store.update_worker("w-1")
    assert await store.dequeue_rollout() is None  # the first claim looks whether the run has ended

    async def asked(request: Awaitable[Any]) -> dict[str, int]:
        backend.calls.clear()
        await request
        return dict(backend.calls)

    queued = await store.enqueue_many_rollouts([EnqueueRolloutRequest(input=number) for number in range(3)])
    a_claim = {"latest_key": 1, "get_document": 1, "claim": 1, "put_document": 1}
    assert await asked(store.dequeue_rollout("w-1")) == a_claim
    assert await asked(store.dequeue_many_rollouts(limit=2, worker_id="w-1")) == a_claim
    of = await store.get_rollout_by_id(queued[2].rollout_id)
    assert isinstance(of, AttemptedRollout)
    spans = [span_of(of) for _ in range(10)]
    assert await asked(store.add_many_spans(spans)) == {"get_many": 1, "append_spans": 1, "replace": 1}
    an_end = {"get": 1, "replace": 1, "get_document": 1, "put_document": 1}
    assert await asked(store.update_attempt(of.rollout_id, "latest", status="succeeded")) == an_end


async def test_what_is_deleted_when_it_is_due_troubles_nobody() -> None:
    class Deleting(MemoryBackend):
        async def due(self, run_id: str, now: float) -> list[RolloutRecord]:
            found = await super().due(run_id, now)
            await self.delete_rollouts(run_id, [record.rollout.rollout_id for record in found])
            return found

    clock = FakeClock()
    store = StoreFacade(Deleting(), clock=clock)
    started = await store.start_rollout("a", config=RolloutConfig(timeout_seconds=5))
    await clock.advance(5)
    assert await store.get_rollout_by_id(started.rollout_id) is None


async def test_a_worker_that_another_version_recorded_is_read_and_goes_on() -> None:
    backend = MemoryBackend()
    store = StoreFacade(backend, run_id="run-1", clock=FakeClock())
    older = {"worker_id": "w-1", "status": "idle", "last_heartbeat_time": None, "what_is_no_more": 1}
    await backend.put_document("run-1", "workers", "w-1", older, revision=0)
    claimed = await store.start_rollout("a", worker_id="w-1")
    worker = present(await store.get_worker_by_id("w-1"))
    assert (worker.status, worker.current_attempt_id) == ("busy", claimed.attempt.attempt_id)
    assert older == {"worker_id": "w-1", "status": "idle", "last_heartbeat_time": None, "what_is_no_more": 1}


async def test_a_store_and_its_views_give_leases_of_the_length_that_was_asked_for() -> None:
    clock = FakeClock()
    store = StoreFacade(MemoryBackend(), clock=clock, lease_seconds=4)
    for of in (store, store.for_run("another-run")):
        await of.update_worker("w-1")
        started = await of.start_rollout("a", worker_id="w-1")
        await clock.advance(3.9)
        assert (await of.query_rollouts(status_in=["preparing"])).total == 1
        await clock.advance(0.1)
        assert [item.rollout_id for item in await of.query_rollouts(status_in=["requeuing"])] == [started.rollout_id]


async def test_nothing_runs_on_when_nobody_waits() -> None:
    clock = FakeClock()
    store = StoreFacade(MemoryBackend(), clock=clock)
    started = await store.start_rollout("a", config=RolloutConfig(timeout_seconds=50))
    waiters = [
        asyncio.create_task(store.dequeue_rollout(wait_seconds=10)),
        asyncio.create_task(store.wait_for_rollouts(rollout_ids=[started.rollout_id], timeout=20)),
    ]
    await asyncio.wait_for(clock.until_waiting(3), 30)
    await clock.advance(20)
    assert await asyncio.wait_for(asyncio.gather(*waiters), 30) == [None, []]
    assert asyncio.all_tasks() == {asyncio.current_task()}


class ForgetfulOfDeadlines(MemoryBackend):
    """Cannot say what is due next, for so many calls."""

    def __init__(self, failures: float) -> None:
        super().__init__()
        self.failures = failures
        self.asked = 0

    async def next_deadline(self, run_id: str) -> float | None:
        self.asked += 1
        if self.asked <= self.failures:
            raise OSError("the index of deadlines is broken")
        return await super().next_deadline(run_id)


async def test_deadlines_that_cannot_be_known_end_every_wait_at_once() -> None:
    backend = ForgetfulOfDeadlines(failures=float("inf"))
    store = StoreFacade(backend)
    started = await store.start_rollout("a")
    waits = [
        store.dequeue_rollout(wait_seconds=None),
        store.dequeue_rollout(wait_seconds=1000),
        store.wait_for_rollouts(rollout_ids=[started.rollout_id]),
    ]
    outcomes = await asyncio.wait_for(asyncio.gather(*waits, return_exceptions=True), 30)
    assert [str(outcome) for outcome in outcomes] == ["the index of deadlines is broken"] * 3
    assert backend.asked <= 2 * len(waits)
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_wait_survives_deadlines_that_could_not_be_known_for_a_moment() -> None:
    backend = ForgetfulOfDeadlines(failures=1)
    store = StoreFacade(backend)
    waiter = asyncio.create_task(store.dequeue_rollout(wait_seconds=None))
    await turn(30)
    assert backend.asked >= 3
    queued = await store.enqueue_rollout("a")
    claimed = present(await asyncio.wait_for(waiter, 30))
    assert claimed.rollout_id == queued.rollout_id


async def test_a_view_that_nobody_uses_is_gone_at_once() -> None:
    store = StoreFacade(MemoryBackend())
    view = store.for_run("another-run")
    assert await view.dequeue_rollout(wait_seconds=0.001) is None
    known = weakref.ref(view)
    gc.collect()
    gc.disable()
    try:
        del view
        assert known() is None
    finally:
        gc.enable()


async def test_claim_whose_answer_was_lost_ends_with_its_lease_where_heartbeats_name_nothing() -> None:
    """As agentlightning 0.3 works: neither its claims nor its heartbeats say what they are for."""
    clock = FakeClock()
    store = StoreFacade(MemoryBackend(), clock=clock, lease_seconds=30)
    await store.update_worker("w-1")
    await store.enqueue_rollout("a")
    lost = present(await store.dequeue_rollout("w-1"))
    for _ in range(3):
        assert await store.dequeue_rollout("w-1") is None
        await clock.advance(10)
        await store.update_worker("w-1")
    again = present(await store.dequeue_rollout("w-1"))
    assert (again.rollout_id, again.attempt.sequence_id) == (lost.rollout_id, 2)


async def test_a_store_class_without_the_parameter_of_parents_works_and_keeps_none() -> None:
    class Earlier(StoreFacade):
        async def add_resources(  # type: ignore[override]  # as stores were written before versions had parents
            self, resources: NamedResources, *, request_id: str | None = None
        ) -> ResourcesUpdate:
            return await super().add_resources(resources, request_id=request_id)

    store: LightningStore = LightningStoreThreaded(Earlier(MemoryBackend()))
    first = await store.add_resources({"p": PromptTemplate(template="a")})
    second = await store.add_resources(
        {"p": PromptTemplate(template="b")}, parent_id=first.resources_id, request_id="b"
    )
    assert second.parent_id is None
    assert await store.get_latest_resources() == second


async def test_that_another_process_has_ended_the_run_is_seen_as_soon_as_it_is_told() -> None:
    class Shared(MemoryBackend):
        is_shared = True

    backend = Shared()
    here, there = (StoreFacade(backend, run_id="run-1") for _ in range(2))
    assert await here.dequeue_rollout() is None  # it has looked just now
    await there.end_run()
    backend._listeners.tell([Change("run-1", "", None, None)])
    with pytest.raises(RunEnded):
        await here.dequeue_rollout()


async def test_a_waiter_that_is_cancelled_while_it_looks_for_work_hands_its_call_on() -> None:
    class Held(MemoryBackend):
        is_held = False

        async def claim(self, *args: Any, **options: Any) -> list[RolloutRecord]:
            if self.is_held:
                looking.set()
                await asyncio.Event().wait()
            return await super().claim(*args, **options)

    looking, backend = asyncio.Event(), Held()
    store = StoreFacade(backend)
    first, second = (asyncio.create_task(store.dequeue_rollout(wait_seconds=None)) for _ in range(2))
    await turn(20)
    backend.is_held = True
    queued = await store.enqueue_rollout("task")
    await looking.wait()
    backend.is_held = False
    first.cancel()
    assert present(await soon(second)).rollout_id == queued.rollout_id
