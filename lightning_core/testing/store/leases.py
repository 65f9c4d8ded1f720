"""Leases of workers that send heartbeats, and faults, which are nobody's failure."""

import asyncio
from typing import Any

import pytest

from lightning_core.errors import InvalidRequest, InvalidTransition
from lightning_core.store import LightningStore
from lightning_core.testing.clock import FakeClock
from lightning_core.testing.store.base import (
    LEASE_SECONDS,
    StoreBehaviour,
    attempt_statuses,
    begin,
    claim,
    present,
    rollout_status,
    soon,
    span_of,
)
from lightning_core.types import Attempt, AttemptedRollout, EnqueueRolloutRequest, RolloutConfig

JUST_BEFORE = LEASE_SECONDS - 0.1


async def claimed_by_a_living_worker(store: LightningStore, **config: Any) -> AttemptedRollout:
    """Queue a rollout, and claim it as a worker that has sent a heartbeat, so that it holds a lease."""
    await store.enqueue_rollout("leased", config=RolloutConfig(**config))
    await store.update_worker("w-1")
    return await claim(store, "w-1")


async def newest_attempt(store: LightningStore, rollout_id: str) -> Attempt:
    """Return the newest attempt of a rollout that has one."""
    return present(await store.get_latest_attempt(rollout_id))


class LeaseBehaviour(StoreBehaviour):
    """A worker that falls silent loses its attempt; a fault takes nothing from the rollout."""

    async def test_a_silent_worker_loses_its_attempt_when_its_lease_ends(
        self, store: LightningStore, clock: FakeClock
    ) -> None:
        claimed = await claimed_by_a_living_worker(store)
        await clock.advance(JUST_BEFORE)
        assert await rollout_status(store, claimed.rollout_id) == "preparing"
        await clock.advance(0.1)
        assert await rollout_status(store, claimed.rollout_id) == "requeuing"
        lost = await newest_attempt(store, claimed.rollout_id)
        assert (lost.status, lost.end_time) == ("unresponsive", clock.now())
        assert lost.metadata == {"fault": f"its worker gave no sign of life for {LEASE_SECONDS:g} s"}
        worker = present(await store.get_worker_by_id("w-1"))
        assert (worker.status, worker.current_attempt_id) == ("unknown", None)

    async def test_a_worker_that_never_sent_a_heartbeat_holds_no_lease(
        self, store: LightningStore, clock: FakeClock
    ) -> None:
        await store.update_worker("another")
        await store.enqueue_rollout("a")
        await store.enqueue_rollout("b")
        named, nameless = await claim(store, "w-1"), await claim(store)
        await clock.advance(100 * LEASE_SECONDS)
        for claimed in (named, nameless):
            assert await rollout_status(store, claimed.rollout_id) == "preparing"
            assert (await store.update_attempt(claimed.rollout_id, "latest", status="succeeded")).metadata is None

    async def test_the_first_heartbeat_after_a_claim_begins_a_lease(
        self, store: LightningStore, clock: FakeClock
    ) -> None:
        started = await begin(store, worker_id="w-1")
        await clock.advance(10 * LEASE_SECONDS)
        await store.update_worker("w-1")
        await clock.advance(JUST_BEFORE)
        assert await rollout_status(store, started.rollout_id) == "preparing"
        await clock.advance(0.1)
        assert await rollout_status(store, started.rollout_id) == "requeuing"

    @pytest.mark.parametrize("sign", ["heartbeat", "span", "running", "attempt"])
    async def test_a_sign_of_life_renews_a_lease(self, store: LightningStore, clock: FakeClock, sign: str) -> None:
        claimed = await claimed_by_a_living_worker(store)
        for _ in range(3):
            await clock.advance(JUST_BEFORE)
            if sign == "heartbeat":
                await store.update_worker("w-1")
            elif sign == "span":
                await store.add_span(span_of(claimed))
            else:
                await store.update_attempt(claimed.rollout_id, "latest", last_heartbeat_time=clock.now())
            if sign == "running":
                await store.update_attempt(claimed.rollout_id, "latest", status="running")
        await clock.advance(JUST_BEFORE)
        assert await rollout_status(store, claimed.rollout_id) in ("preparing", "running")
        await clock.advance(0.1)
        assert await rollout_status(store, claimed.rollout_id) == "requeuing"

    async def test_a_heartbeat_renews_what_its_own_worker_does_now(
        self, store: LightningStore, clock: FakeClock
    ) -> None:
        abandoned = await claimed_by_a_living_worker(store)
        await clock.advance(1)
        now = await claimed_by_a_living_worker(store)
        await clock.advance(JUST_BEFORE)
        await store.update_worker("w-1")
        await store.update_worker("w-2")
        await clock.advance(0.1)
        assert await rollout_status(store, abandoned.rollout_id) == "requeuing"
        assert await rollout_status(store, now.rollout_id) == "preparing"

    async def test_a_heartbeat_renews_all_attempts_that_it_names_and_no_other(
        self, store: LightningStore, clock: FakeClock
    ) -> None:
        await store.update_worker("w-1", attempts=[])
        await store.enqueue_many_rollouts([EnqueueRolloutRequest(input=number) for number in range(4)])
        held = list(await store.dequeue_many_rollouts(limit=4, worker_id="w-1"))
        names = [(of.rollout_id, of.attempt.attempt_id) for of in held]
        for _ in range(2):
            await clock.advance(JUST_BEFORE)
            await store.update_worker("w-1", attempts=names[:3])
        await clock.advance(0.1)
        statuses = [await rollout_status(store, of.rollout_id) for of in held]
        assert statuses == ["preparing", "preparing", "preparing", "requeuing"]

    async def test_what_a_heartbeat_names_and_its_worker_does_not_execute_is_passed_over(
        self, store: LightningStore, clock: FakeClock
    ) -> None:
        others = await claimed_by_a_living_worker(store)
        ended = await begin(store, worker_id="w-2")
        before = await store.update_attempt(ended.rollout_id, "latest", status="succeeded")
        await clock.advance(JUST_BEFORE)
        theirs = [(of.rollout_id, of.attempt.attempt_id) for of in (others, ended)]
        await store.update_worker("w-2", attempts=[*theirs, ("ro-none", "at-none"), (ended.rollout_id, "at-none")])
        assert await newest_attempt(store, ended.rollout_id) == before
        await clock.advance(0.1)
        assert await rollout_status(store, others.rollout_id) == "requeuing"

    async def test_an_idle_workers_heartbeats_keep_nothing(self, store: LightningStore, clock: FakeClock) -> None:
        lost = await claimed_by_a_living_worker(store)  # the answer to the claim never came
        for _ in range(3):
            await clock.advance(LEASE_SECONDS / 3)
            await store.update_worker("w-1", attempts=[])
        assert await rollout_status(store, lost.rollout_id) == "requeuing"

    async def test_attempts_are_named_by_two_ids(self, store: LightningStore) -> None:
        with pytest.raises(InvalidRequest, match="attempts"):
            await store.update_worker("w-1", attempts=["at-1"])  # type: ignore[list-item]
        assert await store.get_worker_by_id("w-1") is None

    async def test_what_a_lost_lease_held_is_queued_once_and_at_the_tail(
        self, store: LightningStore, clock: FakeClock
    ) -> None:
        claimed = await claimed_by_a_living_worker(store)
        waiting = await store.enqueue_rollout("waiting")
        await clock.advance(LEASE_SECONDS)
        for _ in range(2):
            assert await rollout_status(store, claimed.rollout_id) == "requeuing"
            await clock.advance(LEASE_SECONDS)
        assert [(await claim(store)).rollout_id for _ in range(2)] == [waiting.rollout_id, claimed.rollout_id]
        assert await store.dequeue_rollout() is None
        assert await attempt_statuses(store, claimed.rollout_id) == ["unresponsive", "preparing"]

    async def test_a_lost_lease_reaches_whoever_waits_for_work(self, store: LightningStore, clock: FakeClock) -> None:
        lost = await claimed_by_a_living_worker(store)
        waiter = asyncio.create_task(store.dequeue_rollout("w-2", wait_seconds=None))
        await soon(clock.until_waiting())
        await clock.advance(LEASE_SECONDS)
        claimed = present(await soon(waiter))
        assert (claimed.rollout_id, claimed.attempt.sequence_id) == (lost.rollout_id, 2)

    async def test_a_lease_that_appears_during_a_wait_is_kept(self, store: LightningStore, clock: FakeClock) -> None:
        started = await begin(store, worker_id="w-1", timeout_seconds=1000)
        waiter = asyncio.create_task(store.dequeue_rollout("w-2", wait_seconds=None))
        await soon(clock.until_waiting())
        await store.update_worker("w-1")
        await clock.advance(LEASE_SECONDS)
        claimed = present(await soon(waiter))
        assert claimed.rollout_id == started.rollout_id

    async def test_a_reported_fault_ends_the_attempt_and_queues_the_rollout_at_the_tail(
        self, store: LightningStore, clock: FakeClock
    ) -> None:
        started = await begin(store, worker_id="w-1")
        attempt_id = started.attempt.attempt_id
        await store.update_attempt(started.rollout_id, attempt_id, metadata={"gpu": 3})
        waiting = await store.enqueue_rollout("waiting")
        await clock.advance(3)
        ended = await store.report_fault(started.rollout_id, attempt_id, "the proxy died")
        assert (ended.attempt_id, ended.status, ended.end_time) == (attempt_id, "failed", clock.now())
        assert ended.metadata == {"gpu": 3, "fault": "the proxy died"}
        assert await newest_attempt(store, started.rollout_id) == ended
        worker = present(await store.get_worker_by_id("w-1"))
        assert (worker.status, worker.current_attempt_id) == ("idle", None)
        assert [(await claim(store)).rollout_id for _ in range(2)] == [waiting.rollout_id, started.rollout_id]

    @pytest.mark.parametrize("lost", ["report", "lease"])
    async def test_what_comes_late_from_a_faulted_attempt_is_kept_and_changes_nothing(
        self, store: LightningStore, clock: FakeClock, lost: str
    ) -> None:
        claimed = await claimed_by_a_living_worker(store)
        rollout_id, attempt_id = claimed.rollout_id, claimed.attempt.attempt_id
        if lost == "lease":
            await clock.advance(LEASE_SECONDS)
        else:
            await store.report_fault(rollout_id, attempt_id, "the proxy died")
        for _ in range(2):  # while the rollout is queued, and while somebody else executes it
            before = await store.get_rollout_by_id(rollout_id)
            attempts = await attempt_statuses(store, rollout_id)
            assert await store.add_span(span_of(claimed)) is not None
            await store.update_worker("w-1")
            with pytest.raises(InvalidTransition, match="it cannot become 'succeeded'"):
                await store.update_attempt(rollout_id, attempt_id, status="succeeded")
            assert await store.get_rollout_by_id(rollout_id) == before
            assert await attempt_statuses(store, rollout_id) == attempts
            if len(attempts) == 1:
                await claim(store, "w-2")
        assert (await store.query_spans(rollout_id, attempt_id)).total == 2
        late = await store.update_attempt(rollout_id, attempt_id, metadata={"result": 1})
        assert late.metadata == {"result": 1}

    @pytest.mark.parametrize("sign", ["heartbeat", "span", "result"])
    async def test_a_late_sign_of_life_keeps_a_lease_that_nobody_has_taken_away(
        self, store: LightningStore, clock: FakeClock, sign: str
    ) -> None:
        # A whole process may stand still: its workers are as late as the look at their leases.
        leased = await claimed_by_a_living_worker(store)
        await clock.advance(LEASE_SECONDS * 2)
        if sign == "heartbeat":
            await store.update_worker("w-1")
        elif sign == "span":
            await store.add_span(span_of(leased))
        else:
            await store.update_attempt(leased.rollout_id, leased.attempt.attempt_id, status="succeeded")
        expected = {"heartbeat": "preparing", "span": "running", "result": "succeeded"}[sign]
        assert await rollout_status(store, leased.rollout_id) == expected

    @pytest.mark.parametrize("limit", ["lease", "unresponsive_seconds"])
    async def test_who_lives_loses_nothing_when_the_stores_process_stood_still(
        self, store: LightningStore, clock: FakeClock, limit: str
    ) -> None:
        config = {} if limit == "lease" else {"unresponsive_seconds": LEASE_SECONDS}
        started = [await store.start_rollout("a", config=RolloutConfig(**config)) for _ in range(2)]
        for number, of in enumerate(started):
            await store.update_worker(f"w-{number}")
            await store.update_attempt(of.rollout_id, "latest", worker_id=f"w-{number}")
            await store.update_worker(f"w-{number}")
        waiter = asyncio.create_task(store.wait_for_rollouts(rollout_ids=[of.rollout_id for of in started]))
        await soon(clock.until_waiting())
        await clock.stand_still(2 * LEASE_SECONDS)
        for number, of in enumerate(started):
            assert await rollout_status(store, of.rollout_id) == "preparing"
            await store.update_worker(f"w-{number}")
        await clock.advance(JUST_BEFORE)
        for of in started:
            assert await rollout_status(store, of.rollout_id) == "preparing"
            await store.update_rollout(of.rollout_id, status="cancelled")
        assert len(await soon(waiter)) == len(started)

    async def test_who_died_is_lost_one_term_after_the_stores_process_stood_still(
        self, store: LightningStore, clock: FakeClock
    ) -> None:
        lost = await claimed_by_a_living_worker(store)
        waiter = asyncio.create_task(store.dequeue_rollout("w-2", wait_seconds=None))
        await soon(clock.until_waiting())
        await clock.stand_still(2 * LEASE_SECONDS)
        assert await rollout_status(store, lost.rollout_id) == "preparing"
        await soon(clock.until_waiting())
        await clock.advance(LEASE_SECONDS)
        claimed = present(await soon(waiter))
        assert claimed.rollout_id == lost.rollout_id
        assert await attempt_statuses(store, lost.rollout_id) == ["unresponsive", "preparing"]

    async def test_a_lease_has_one_more_term_when_the_store_is_opened_again(
        self, store: LightningStore, clock: FakeClock
    ) -> None:
        alive = await claimed_by_a_living_worker(store)
        await store.enqueue_rollout("leased")
        await store.update_worker("w-2")
        dead = await claim(store, "w-2")
        await clock.advance(JUST_BEFORE)
        reopened = await self.reopen_store(store, clock=clock)
        if reopened is None:
            pytest.skip("nothing outlives this store")
        await clock.advance(JUST_BEFORE)
        for of in (alive, dead):
            assert await rollout_status(reopened, of.rollout_id) == "preparing"
        await reopened.update_worker("w-1")
        await clock.advance(0.1)
        assert await rollout_status(reopened, alive.rollout_id) == "preparing"
        assert await rollout_status(reopened, dead.rollout_id) == "requeuing"
        await reopened.aclose()

    @pytest.mark.parametrize("seconds", [-3600, 3600])
    async def test_a_clock_that_is_set_takes_nothing_from_who_lives_and_leaves_nothing_to_who_died(
        self, store: LightningStore, clock: FakeClock, seconds: int
    ) -> None:
        alive = await claimed_by_a_living_worker(store, timeout_seconds=10 * LEASE_SECONDS)
        await store.enqueue_rollout("leased")
        await store.update_worker("w-2")
        dead = await claim(store, "w-2")
        await clock.advance(1)
        clock.set_by(seconds)
        for _ in range(2):
            await store.update_worker("w-1")
            await clock.advance(LEASE_SECONDS / 2)
        await store.update_worker("w-1")
        assert await rollout_status(store, alive.rollout_id) == "preparing"
        assert await rollout_status(store, dead.rollout_id) == "requeuing"
        for _ in range(18):
            await store.update_worker("w-1")
            await clock.advance(LEASE_SECONDS / 2)
        assert await attempt_statuses(store, alive.rollout_id) == ["timeout"]

    async def test_a_store_tells_how_long_its_leases_are_or_says_nothing(self, store: LightningStore) -> None:
        await store.update_worker("w-1")
        assert store.lease_seconds in (None, LEASE_SECONDS)
