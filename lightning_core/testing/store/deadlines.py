"""Limits of an attempt's time and silence, and its revival."""

import asyncio

from lightning_core.store import LightningStore
from lightning_core.testing.clock import FakeClock
from lightning_core.testing.store.base import (
    StoreBehaviour,
    attempt_statuses,
    begin,
    present,
    rollout_status,
    soon,
    span_of,
)
from lightning_core.types import RolloutConfig


class DeadlineBehaviour(StoreBehaviour):
    """An attempt ends at its time, whoever looks."""

    async def test_an_attempt_times_out_at_its_time_and_not_before(
        self, store: LightningStore, clock: FakeClock
    ) -> None:
        started = await begin(store, timeout_seconds=10)
        await clock.advance(9.9)
        await store.add_span(span_of(started))
        assert await rollout_status(store, started.rollout_id) == "running"
        await clock.advance(0.1)
        assert await rollout_status(store, started.rollout_id) == "failed"
        assert await attempt_statuses(store, started.rollout_id) == ["timeout"]

    async def test_a_new_limit_holds_for_the_attempt_that_runs(self, store: LightningStore, clock: FakeClock) -> None:
        longer, shorter = await begin(store, timeout_seconds=10), await begin(store, timeout_seconds=100)
        await store.update_rollout(longer.rollout_id, config=RolloutConfig(timeout_seconds=30))
        await store.update_rollout(shorter.rollout_id, config=RolloutConfig(timeout_seconds=5))
        await clock.advance(29)
        assert await rollout_status(store, shorter.rollout_id) == "failed"
        assert await rollout_status(store, longer.rollout_id) == "preparing"
        await clock.advance(1)
        assert await rollout_status(store, longer.rollout_id) == "failed"

    async def test_an_attempt_that_ended_or_was_given_up_has_no_deadline(
        self, store: LightningStore, clock: FakeClock
    ) -> None:
        succeeded, cancelled = await begin(store, timeout_seconds=10), await begin(store, timeout_seconds=10)
        queued_again, replaced = await begin(store, timeout_seconds=10), await begin(store, timeout_seconds=10)
        await store.update_attempt(succeeded.rollout_id, "latest", status="succeeded")
        await store.update_rollout(cancelled.rollout_id, status="cancelled")
        await store.update_rollout(queued_again.rollout_id, status="queuing")
        await clock.advance(9)
        await store.start_attempt(replaced.rollout_id)
        await clock.advance(9)
        assert await rollout_status(store, succeeded.rollout_id) == "succeeded"
        assert await rollout_status(store, cancelled.rollout_id) == "cancelled"
        assert await rollout_status(store, queued_again.rollout_id) == "queuing"
        assert await attempt_statuses(store, replaced.rollout_id) == ["preparing", "preparing"]

    async def test_a_new_span_revives_an_unresponsive_attempt(self, store: LightningStore, clock: FakeClock) -> None:
        started = await begin(
            store, worker_id="w-1", unresponsive_seconds=10, max_attempts=2, retry_condition=["unresponsive"]
        )
        await clock.advance(10)
        assert await rollout_status(store, started.rollout_id) == "requeuing"
        await store.add_span(span_of(started))
        assert await rollout_status(store, started.rollout_id) == "running"
        attempt = present(await store.get_latest_attempt(started.rollout_id))
        assert (attempt.status, attempt.end_time, attempt.last_heartbeat_time) == ("running", None, clock.now())
        assert await store.dequeue_rollout() is None
        worker = present(await store.get_worker_by_id("w-1"))
        assert (worker.status, worker.current_attempt_id) == ("busy", attempt.attempt_id)
        await clock.advance(9)
        await store.update_worker("w-1")
        await clock.advance(9)
        assert await rollout_status(store, started.rollout_id) == "running"

    async def test_a_span_that_was_there_already_revives_nothing(self, store: LightningStore, clock: FakeClock) -> None:
        started = await begin(store, unresponsive_seconds=10, max_attempts=2, retry_condition=["unresponsive"])
        span = span_of(started)
        await store.add_span(span)
        await clock.advance(10)
        assert await store.add_span(span) is None
        assert await rollout_status(store, started.rollout_id) == "requeuing"

    async def test_every_read_sees_what_is_due(self, store: LightningStore, clock: FakeClock) -> None:
        started = await begin(store, worker_id="w-1", timeout_seconds=10)
        await clock.advance(10)
        assert (await store.query_rollouts(status_in=["failed"])).total == 1
        also = await begin(store, worker_id="w-1", timeout_seconds=10)
        await clock.advance(10)
        worker = present(await store.get_worker_by_id("w-1"))
        assert (worker.status, worker.current_attempt_id) == ("unknown", None)
        assert await attempt_statuses(store, also.rollout_id) == ["timeout"]
        assert await attempt_statuses(store, started.rollout_id) == ["timeout"]

    async def test_deadlines_come_while_somebody_waits_for_the_results(
        self, store: LightningStore, clock: FakeClock
    ) -> None:
        started = [await begin(store, timeout_seconds=seconds) for seconds in (30, 10, 20)]
        waiter = asyncio.create_task(store.wait_for_rollouts(rollout_ids=[item.rollout_id for item in started]))
        for first in (started[1], started[2], started[0]):
            results = asyncio.create_task(store.wait_for_rollouts(rollout_ids=[first.rollout_id]))
            await soon(clock.until_waiting())
            await clock.advance(10)  # one deadline at a time: a store with real I/O is still busy with it
            [item] = await soon(results)
            assert (item.status, item.end_time) == ("failed", clock.now())
        assert {item.rollout_id for item in await soon(waiter)} == {item.rollout_id for item in started}

    async def test_a_deadline_that_appears_during_a_wait_is_kept(self, store: LightningStore, clock: FakeClock) -> None:
        started = await begin(store, timeout_seconds=100)
        waiter = asyncio.create_task(store.wait_for_rollouts(rollout_ids=[started.rollout_id]))
        await soon(clock.until_waiting())
        await store.update_rollout(started.rollout_id, config=RolloutConfig(timeout_seconds=5))
        await clock.advance(5)
        assert [item.end_time for item in await soon(waiter)] == [clock.now()]
