import asyncio
import logging

import pytest
from lightning_http import observed as following_module
from lightning_http.observed import following

from lightning_core.errors import StoreUnavailable
from lightning_core.store import InMemoryLightningStore, LightningStore
from lightning_core.types import Attempt, AttemptedRollout, PaginatedResult, Rollout, RolloutConfig

pytestmark = pytest.mark.usefixtures("nothing_left_running")


class Notes:
    def __init__(self) -> None:
        self.taken: list[str] = []
        self._told = asyncio.Event()

    async def began(self, rollout: AttemptedRollout) -> None:
        self._take(f"began {rollout.input} {rollout.attempt.sequence_id}")

    async def ended(self, store: LightningStore, attempt: Attempt) -> None:
        rollout = await store.get_rollout_by_id(attempt.rollout_id)
        assert rollout is not None
        self._take(f"{rollout.input} {attempt.sequence_id} {attempt.status}")

    def _take(self, note: str) -> None:
        self.taken.append(note)
        self._told.set()

    async def until(self, *taken: str) -> None:
        async with asyncio.timeout(20):
            while not set(taken) <= set(self.taken):
                self._told.clear()
                await self._told.wait()


@pytest.fixture
def notes() -> Notes:
    return Notes()


async def claim(store: LightningStore) -> AttemptedRollout:
    claimed = await store.dequeue_rollout("elsewhere")
    assert claimed is not None
    return claimed


async def end(store: LightningStore, claimed: AttemptedRollout, status: str = "succeeded") -> None:
    await store.update_attempt(claimed.rollout_id, claimed.attempt.attempt_id, status=status)  # type: ignore[arg-type]


async def test_many_that_end_between_two_looks_are_all_told_once(notes: Notes):
    store = InMemoryLightningStore()
    for number in range(250):
        await store.enqueue_rollout(f"before {number}")
        await end(store, await claim(store))
    async with following(store, notes):
        cancelled = await store.enqueue_rollout("cancelled")
        await store.update_rollout(cancelled.rollout_id, status="cancelled")
        for number in range(450):
            await store.enqueue_rollout(number)
            await end(store, await claim(store), "succeeded" if number else "failed")
    assert notes.taken == ["0 1 failed", *(f"{number} 1 succeeded" for number in range(1, 450))]


async def test_what_runs_and_what_is_retried_is_told_while_it_goes_on(notes: Notes, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(following_module, "FOLLOW_SECONDS", 0.01)
    store = InMemoryLightningStore()
    async with following(store, notes):
        await store.enqueue_rollout("a", config=RolloutConfig(max_attempts=2, retry_condition=["failed"]))
        first = await claim(store)
        await notes.until("began a 1")
        await end(store, first, "failed")
        await notes.until("a 1 failed")
        second = await claim(store)
        await notes.until("began a 2")
        await end(store, second)
        await notes.until("a 2 succeeded")
    assert notes.taken == ["began a 1", "a 1 failed", "began a 2", "a 2 succeeded"]


async def test_store_that_is_out_of_reach_for_a_while_costs_a_line_and_no_count(
    notes: Notes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    class Unreliable(InMemoryLightningStore):
        is_reachable = True
        has_failed = asyncio.Event()

        async def query_rollouts(self, **options: object) -> PaginatedResult[Rollout]:  # type: ignore[override]
            if not self.is_reachable:
                self.has_failed.set()
                raise StoreUnavailable("the line is dead")
            return await super().query_rollouts(**options)  # type: ignore[arg-type]

    monkeypatch.setattr(following_module, "FOLLOW_SECONDS", 0.01)
    store = Unreliable()
    async with following(store, notes):
        store.is_reachable = False
        await store.enqueue_rollout("a")
        await end(store, await claim(store))
        async with asyncio.timeout(20):
            await store.has_failed.wait()
        store.is_reachable = True
    assert notes.taken == ["a 1 succeeded"]
    assert "lightning.progress_not_known" in caplog.text
    assert all(record.levelno == logging.WARNING and record.exc_info is None for record in caplog.records)
