"""A process that stood still bears with those who are late, once, and not with those who are late without it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from lightning_core.store import InMemoryLightningStore
from lightning_core.testing import FakeClock
from lightning_core.testing.store.base import attempt_statuses, rollout_status, soon
from lightning_core.types import AttemptedRollout, RolloutConfig

LEASE_SECONDS = 30.0
GRACE_SECONDS = 5.0


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def store(clock: FakeClock) -> InMemoryLightningStore:
    return InMemoryLightningStore(clock=clock, lease_seconds=LEASE_SECONDS)


async def leased(store: InMemoryLightningStore, worker_id: str) -> AttemptedRollout:
    await store.update_worker(worker_id)
    return await store.start_rollout(worker_id, worker_id=worker_id)


@asynccontextmanager
async def somebody_waiting(store: InMemoryLightningStore, clock: FakeClock) -> AsyncIterator[None]:
    waiter = asyncio.create_task(store.dequeue_rollout(wait_seconds=None))
    await soon(clock.until_waiting())
    yield
    waiter.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await waiter


async def test_a_grace_ends_to_the_second(store: InMemoryLightningStore, clock: FakeClock) -> None:
    lost = await leased(store, "w-1")
    async with somebody_waiting(store, clock):
        await clock.stand_still(LEASE_SECONDS + 1)
        await clock.advance(GRACE_SECONDS - 0.1)
        assert await attempt_statuses(store, lost.rollout_id) == ["preparing"]
        await clock.advance(0.1)
        assert (await attempt_statuses(store, lost.rollout_id))[0] == "unresponsive"


async def test_one_standstill_gives_one_grace(store: InMemoryLightningStore, clock: FakeClock) -> None:
    lost = await leased(store, "w-1")
    async with somebody_waiting(store, clock):
        await clock.stand_still(LEASE_SECONDS + 1)
        assert await attempt_statuses(store, lost.rollout_id) == ["preparing"]
        await clock.stand_still(GRACE_SECONDS + 1)
        assert (await attempt_statuses(store, lost.rollout_id))[0] == "unresponsive"


async def test_another_standstill_gives_another_grace(store: InMemoryLightningStore, clock: FakeClock) -> None:
    alive = await leased(store, "w-1")
    async with somebody_waiting(store, clock):
        for _ in range(3):
            await clock.stand_still(LEASE_SECONDS + 1)
            await store.update_worker("w-1")
            await clock.advance(GRACE_SECONDS + 1)
        assert await attempt_statuses(store, alive.rollout_id) == ["preparing"]


async def test_an_agent_that_ran_out_of_its_time_meanwhile_gets_no_grace(
    store: InMemoryLightningStore, clock: FakeClock
) -> None:
    started = await store.start_rollout("a", config=RolloutConfig(timeout_seconds=10))
    async with somebody_waiting(store, clock):
        await clock.stand_still(20)
        assert await attempt_statuses(store, started.rollout_id) == ["timeout"]


async def test_a_look_that_is_hardly_late_means_nothing(store: InMemoryLightningStore, clock: FakeClock) -> None:
    lost = await leased(store, "w-1")
    async with somebody_waiting(store, clock):
        await clock.stand_still(LEASE_SECONDS + GRACE_SECONDS / 20)
        assert (await attempt_statuses(store, lost.rollout_id))[0] == "unresponsive"


async def test_the_first_sign_of_life_after_a_standstill_saves_all_where_nobody_waits(
    store: InMemoryLightningStore, clock: FakeClock
) -> None:
    started = [await leased(store, f"w-{number}") for number in range(3)]
    await clock.advance(LEASE_SECONDS + 20)
    await store.update_worker("w-2")
    await clock.advance(GRACE_SECONDS / 2)
    await store.update_worker("w-0")
    await clock.advance(GRACE_SECONDS / 2)
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


async def test_short_leases_have_a_shorter_grace(clock: FakeClock) -> None:
    store = InMemoryLightningStore(clock=clock, lease_seconds=3)
    lost = await leased(store, "w-1")
    async with somebody_waiting(store, clock):
        await clock.stand_still(10)
        assert await attempt_statuses(store, lost.rollout_id) == ["preparing"]
        await clock.advance(1)
        assert (await attempt_statuses(store, lost.rollout_id))[0] == "unresponsive"
