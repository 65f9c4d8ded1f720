import asyncio
from typing import Any

import pytest
from lightning_http.observed import ObservedStore

from lightning_core.errors import RunEnded, StoreClosed, StoreError
from lightning_core.store import InMemoryLightningStore, LightningStore
from lightning_core.types import Attempt, AttemptedRollout

pytestmark = pytest.mark.usefixtures("nothing_left_running")


class Notes:
    def __init__(self) -> None:
        self.taken: list[str] = []

    async def began(self, rollout: AttemptedRollout) -> None:
        self.taken.append(f"began {rollout.input}")

    async def ended(self, store: LightningStore, attempt: Attempt) -> None:
        rollout = await store.get_rollout_by_id(attempt.rollout_id)
        assert rollout is not None
        self.taken.append(f"{rollout.input} {attempt.status}")


@pytest.fixture
def behind() -> InMemoryLightningStore:
    return InMemoryLightningStore()


@pytest.fixture
def notes() -> Notes:
    return Notes()


@pytest.fixture
def store(behind: InMemoryLightningStore, notes: Notes) -> ObservedStore:
    return ObservedStore(behind, notes)


async def claim(store: ObservedStore, worker_id: str) -> AttemptedRollout:
    claimed = await store.dequeue_rollout(worker_id)
    assert claimed is not None
    return claimed


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_observer_is_told_of_claims_and_once_of_each_report(store: ObservedStore, notes: Notes):
    await store.enqueue_rollout("a")
    await store.enqueue_rollout("b")
    first, second = await claim(store, "w-1"), await claim(store, "w-2")
    for _ in range(2):
        await store.update_attempt(first.rollout_id, first.attempt.attempt_id, status="succeeded")
    await store.update_attempt(second.rollout_id, second.attempt.attempt_id, last_heartbeat_time=1e12)
    await store.report_fault(second.rollout_id, second.attempt.attempt_id, "gone")
    assert notes.taken == ["began a", "began b", "a succeeded", "b failed"]


async def test_after_the_end_there_is_no_more_work(store: ObservedStore, behind: InMemoryLightningStore):
    waiting = asyncio.create_task(store.dequeue_rollout("w-1", wait_seconds=None))
    await settle()
    await store.end_run()
    with pytest.raises(RunEnded, match=rf"run {behind.run_id} has ended; there is no more work"):
        await waiting
    await store.enqueue_rollout("a")
    with pytest.raises(RunEnded):
        await store.dequeue_rollout("w-1")
    assert len(await behind.query_rollouts(status_in=["queuing"])) == 1


async def test_all_are_told_when_those_who_worked_have_come_back(store: ObservedStore):
    await store.enqueue_rollout("a")
    await store.enqueue_rollout("b")
    first = await claim(store, "w-1")
    await claim(store, "w-2")
    told = asyncio.create_task(store.all_told())
    assert store.is_executing("w-1")
    await store.update_attempt(first.rollout_id, first.attempt.attempt_id, status="succeeded")
    assert not store.is_executing("w-1")
    await store.end_run()
    await settle()
    assert not told.done()
    with pytest.raises(RunEnded):
        await store.dequeue_rollout("w-1")
    await settle()
    assert not told.done()
    store.forget("w-2")
    await told


async def test_worker_that_has_reported_and_left_is_not_waited_for_long(
    store: ObservedStore, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("lightning_http.observed.BACK_SECONDS", 0.05, raising=False)
    await store.enqueue_rollout("a")
    claimed = await claim(store, "w-1")
    await store.update_attempt(claimed.rollout_id, claimed.attempt.attempt_id, status="succeeded")
    await store.end_run()
    async with asyncio.timeout(20):
        await store.all_told()


async def test_worker_whose_attempt_was_taken_from_it_is_not_waited_for(
    store: ObservedStore, behind: InMemoryLightningStore
):
    await store.enqueue_rollout("a")
    claimed = await claim(store, "w-1")
    await behind.update_attempt(claimed.rollout_id, claimed.attempt.attempt_id, status="unresponsive")
    await store.end_run()
    async with asyncio.timeout(20):
        await store.all_told()


async def test_dead_worker_that_claims_holds_nobody_up_even_where_that_cannot_be_taken_back(
    store: ObservedStore, behind: InMemoryLightningStore, monkeypatch: pytest.MonkeyPatch
):
    async def fail(*arguments: Any, **options: Any) -> Attempt:
        raise StoreError("the disk is full")

    store.forget("dead")
    await behind.enqueue_rollout("a")
    assert await store.dequeue_rollout("host-1-dead-0") is None
    monkeypatch.setattr(behind, "report_fault", fail)
    with pytest.raises(StoreError, match="the disk is full"):
        await store.dequeue_rollout("host-1-dead-0")
    await store.end_run()
    async with asyncio.timeout(20):
        await store.all_told()


async def test_claim_that_its_workers_death_has_overtaken_is_taken_back(
    store: ObservedStore, behind: InMemoryLightningStore
):
    waiting = asyncio.create_task(store.dequeue_rollout("host-1-dead-0", wait_seconds=None))
    await settle()
    store.forget("dead")
    rollout = await behind.enqueue_rollout("a")
    await waiting
    found = await behind.get_rollout_by_id(rollout.rollout_id)
    assert found is not None
    assert found.status == "requeuing"


async def test_errors_of_the_store_go_through(store: ObservedStore, behind: InMemoryLightningStore):
    waiting = asyncio.create_task(store.dequeue_rollout("w-1", wait_seconds=None))
    await settle()
    await behind.aclose()
    with pytest.raises(StoreClosed):
        await waiting
