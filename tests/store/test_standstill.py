"""A process that stood still gives every lease one more term; the wall clock ends none, and prolongs none."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from lightning_core.store import InMemoryLightningStore, StoreFacade
from lightning_core.store.memory import MemoryBackend
from lightning_core.testing import FakeClock
from lightning_core.testing.store.base import attempt_statuses, rollout_status, soon
from lightning_core.types import AttemptedRollout, RolloutConfig

LEASE_SECONDS = 30.0
HOUR = 3600.0


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def store(clock: FakeClock) -> InMemoryLightningStore:
    return InMemoryLightningStore(clock=clock, lease_seconds=LEASE_SECONDS)


async def leased(store: InMemoryLightningStore, worker_id: str) -> AttemptedRollout:
    await store.update_worker(worker_id)
    return await store.start_rollout(worker_id, worker_id=worker_id)


async def ended(waiter: "asyncio.Task[object]") -> None:
    waiter.cancel()
    await asyncio.wait((waiter,))


@asynccontextmanager
async def somebody_waiting(store: InMemoryLightningStore, clock: FakeClock) -> AsyncIterator[None]:
    waiter = asyncio.create_task(store.dequeue_rollout(wait_seconds=None))
    await soon(clock.until_waiting())
    yield
    await ended(waiter)


async def test_another_standstill_gives_another_term(store: InMemoryLightningStore, clock: FakeClock) -> None:
    alive = await leased(store, "w-1")
    async with somebody_waiting(store, clock):
        for _ in range(3):
            await clock.stand_still(LEASE_SECONDS + 1)
            await clock.advance(LEASE_SECONDS - 1)
            assert await attempt_statuses(store, alive.rollout_id) == ["preparing"]


async def test_a_wait_that_ends_with_the_standstill_does_not_hide_it(
    store: InMemoryLightningStore, clock: FakeClock
) -> None:
    started = [await leased(store, f"w-{number}") for number in range(3)]
    waiter = asyncio.create_task(store.dequeue_rollout(wait_seconds=None))
    await soon(clock.until_waiting())
    # As a server does at once when it goes on: the time of the wait is over, too.
    clock.pass_unseen(2 * LEASE_SECONDS)
    await ended(waiter)
    assert [await rollout_status(store, of.rollout_id) for of in started] == ["preparing"] * 3


async def test_an_agent_that_ran_out_of_its_time_meanwhile_gets_no_more(
    store: InMemoryLightningStore, clock: FakeClock
) -> None:
    started = await store.start_rollout("a", config=RolloutConfig(timeout_seconds=10))
    async with somebody_waiting(store, clock):
        await clock.stand_still(2 * LEASE_SECONDS)
        assert await attempt_statuses(store, started.rollout_id) == ["timeout"]


async def test_a_short_pause_means_nothing(store: InMemoryLightningStore, clock: FakeClock) -> None:
    lost = await leased(store, "w-1")
    async with somebody_waiting(store, clock):
        await clock.advance(LEASE_SECONDS - 1)
        await clock.stand_still(1.25)
        assert (await attempt_statuses(store, lost.rollout_id))[0] == "unresponsive"


async def test_the_first_sign_of_life_after_a_standstill_saves_all_where_nobody_waits(
    store: InMemoryLightningStore, clock: FakeClock
) -> None:
    started = [await leased(store, f"w-{number}") for number in range(3)]
    await clock.advance(LEASE_SECONDS + 20)
    await store.update_worker("w-2")
    await clock.advance(LEASE_SECONDS / 2)
    await store.update_worker("w-0")
    await store.update_worker("w-2")
    await clock.advance(LEASE_SECONDS / 2)
    statuses = [await rollout_status(store, of.rollout_id) for of in started]
    assert statuses == ["preparing", "requeuing", "preparing"]


async def test_where_nobody_waits_others_calls_prove_that_it_is_the_worker_who_is_silent(
    store: InMemoryLightningStore, clock: FakeClock
) -> None:
    one, other = await leased(store, "w-1"), await leased(store, "w-2")
    await clock.advance(LEASE_SECONDS - 1)
    await store.get_rollout_by_id(one.rollout_id)
    await clock.advance(2)
    await store.update_worker("w-1")
    assert await rollout_status(store, one.rollout_id) == "preparing"
    assert await rollout_status(store, other.rollout_id) == "requeuing"


async def test_what_was_written_ahead_of_a_clock_that_is_set_back_is_not_held(clock: FakeClock) -> None:
    """The clock was set back while no process had the store open."""
    backend = MemoryBackend()
    before = StoreFacade(backend, run_id="run-1", clock=clock)
    await before.update_worker("w-1")
    lost = await before.start_rollout("a", worker_id="w-1")
    clock.set_by(-HOUR)
    after = StoreFacade(backend, run_id="run-1", clock=clock)
    assert await rollout_status(after, lost.rollout_id) == "preparing"
    await clock.advance(LEASE_SECONDS)
    assert await rollout_status(after, lost.rollout_id) == "requeuing"


async def test_a_far_deadline_of_another_run_does_not_hide_a_standstill(
    store: InMemoryLightningStore, clock: FakeClock
) -> None:
    alive = await leased(store, "w-1")
    other = store.for_run("another")
    slow = await other.start_rollout("slow", config=RolloutConfig(timeout_seconds=HOUR))
    waiter = asyncio.create_task(other.wait_for_rollouts(rollout_ids=[slow.rollout_id], timeout=None))
    await soon(clock.until_waiting())
    async with somebody_waiting(store, clock):
        await clock.stand_still(LEASE_SECONDS + 1)
        await store.query_rollouts()
        assert await attempt_statuses(store, alive.rollout_id) == ["preparing"]
    await ended(waiter)
