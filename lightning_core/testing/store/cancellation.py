"""Cancelling a rollout, wherever it stands."""

import asyncio

import pytest

from lightning_core.errors import InvalidTransition
from lightning_core.store import LightningStore
from lightning_core.testing.clock import FakeClock
from lightning_core.testing.store.base import (
    LEASE_SECONDS,
    StoreBehaviour,
    attempt_statuses,
    begin,
    claim,
    rollout_status,
    soon,
    span_of,
)


class CancellationBehaviour(StoreBehaviour):
    """A cancelled rollout is over, whatever its attempt still does."""

    async def test_a_cancelled_queued_rollout_is_never_claimed(self, store: LightningStore, clock: FakeClock) -> None:
        queued = await store.enqueue_rollout("a")
        waiter = asyncio.create_task(store.wait_for_rollouts(rollout_ids=[queued.rollout_id]))
        await clock.advance(2)
        cancelled = await store.update_rollout(queued.rollout_id, status="cancelled")
        assert (cancelled.status, cancelled.end_time) == ("cancelled", clock.now())
        assert list(await soon(waiter)) == [cancelled]
        assert await store.dequeue_rollout() is None

    async def test_whoever_executes_a_cancelled_rollout_can_learn_of_it(
        self, store: LightningStore, clock: FakeClock
    ) -> None:
        await store.update_worker("w-1")
        await store.enqueue_rollout("a")
        claimed = await claim(store, "w-1")
        learns = asyncio.create_task(store.wait_for_rollouts(rollout_ids=[claimed.rollout_id]))
        await soon(clock.until_waiting())  # for the end of the lease
        await store.update_rollout(claimed.rollout_id, status="cancelled")
        assert [item.status for item in await soon(learns)] == ["cancelled"]

    async def test_a_cancelled_attempt_ends_itself_and_frees_its_worker(
        self, store: LightningStore, clock: FakeClock
    ) -> None:
        await store.update_worker("w-1")
        started = await begin(store, worker_id="w-1", max_attempts=3, retry_condition=["failed"], timeout_seconds=5)
        cancelled = await store.update_rollout(started.rollout_id, status="cancelled")
        await store.update_worker("w-1")
        await clock.advance(2 * LEASE_SECONDS)
        assert await attempt_statuses(store, started.rollout_id) == ["preparing"]
        await store.add_span(span_of(started, "stopped"))
        await store.update_attempt(started.rollout_id, started.attempt.attempt_id, status="failed")
        assert await attempt_statuses(store, started.rollout_id) == ["failed"]
        rollout = await store.get_rollout_by_id(started.rollout_id)
        assert rollout is not None
        assert (rollout.status, rollout.end_time) == ("cancelled", cancelled.end_time)
        worker = await store.get_worker_by_id("w-1")
        assert worker is not None
        assert (worker.status, worker.current_attempt_id) == ("idle", None)
        assert await store.dequeue_rollout() is None

    async def test_a_rollout_that_waits_for_its_retry_is_cancelled(self, store: LightningStore) -> None:
        started = await begin(store, max_attempts=2, retry_condition=["failed"])
        await store.update_attempt(started.rollout_id, "latest", status="failed")
        await store.update_rollout(started.rollout_id, status="cancelled")
        assert await store.dequeue_rollout() is None

    async def test_a_fault_does_not_queue_a_cancelled_rollout_again(self, store: LightningStore) -> None:
        started = await begin(store)
        await store.update_rollout(started.rollout_id, status="cancelled")
        await store.report_fault(started.rollout_id, started.attempt.attempt_id, "the proxy died")
        assert await rollout_status(store, started.rollout_id) == "cancelled"
        assert await store.dequeue_rollout() is None

    async def test_what_has_ended_cannot_be_cancelled(self, store: LightningStore) -> None:
        started = await begin(store)
        await store.update_attempt(started.rollout_id, "latest", status="succeeded")
        with pytest.raises(InvalidTransition, match=r"has ended \('succeeded'\); it cannot become 'cancelled'"):
            await store.update_rollout(started.rollout_id, status="cancelled")
