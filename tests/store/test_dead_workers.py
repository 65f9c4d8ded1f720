"""What ran when its process was killed is queued again at once."""

from typing import Any
from unittest.mock import AsyncMock

import pytest
from lightning_http.observed import ObservedStore

from lightning_core import InMemoryLightningStore, LightningStore
from lightning_core.store.threaded import LightningStoreThreaded
from lightning_core.testing import FakeClock
from lightning_core.testing.store.base import present, rollout_status
from lightning_core.types import RolloutConfig


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=["facade", "any store"])
def store(request: pytest.FixtureRequest, clock: FakeClock) -> LightningStore:
    class AnyStore(InMemoryLightningStore):
        report_dead_workers = LightningStore.report_dead_workers

    return AnyStore(clock=clock) if request.param == "any store" else InMemoryLightningStore(clock=clock)


async def test_rollouts_that_ran_are_queued_again_and_use_up_no_attempt(store: LightningStore) -> None:
    config = RolloutConfig(max_attempts=1)
    ended, running, waiting = [await store.enqueue_rollout(number, config=config) for number in range(3)]
    first = present(await store.dequeue_rollout("worker-0"))
    await store.update_attempt(ended.rollout_id, first.attempt.attempt_id, status="succeeded")
    await store.dequeue_rollout("worker-1")
    assert await store.report_dead_workers("killed") == 1
    assert [each.status for each in await store.query_rollouts()] == ["succeeded", "requeuing", "queuing"]
    [attempt] = await store.query_attempts(running.rollout_id)
    assert (attempt.status, attempt.metadata) == ("failed", {"fault": "killed"})
    worker: Any = await store.get_worker_by_id("worker-1")
    assert worker.current_rollout_id is None
    assert [each.rollout_id for each in await store.dequeue_many_rollouts(limit=5)] == [
        waiting.rollout_id,
        running.rollout_id,
    ]
    assert await store.report_dead_workers("killed") == 2
    assert await store.report_dead_workers("killed") == 0


@pytest.mark.parametrize(
    "wrapped",
    [lambda store: store, LightningStoreThreaded, lambda store: ObservedStore(store, AsyncMock())],
    ids=["itself", "threaded", "observed"],
)
async def test_time_that_passed_since_the_kill_is_no_timeout(clock: FakeClock, wrapped: Any) -> None:
    store = InMemoryLightningStore(clock=clock)
    outer = wrapped(store)
    rollout = await store.enqueue_rollout(1, config=RolloutConfig(timeout_seconds=5))
    await store.dequeue_rollout("worker-0")
    await clock.advance(3600)
    assert await outer.report_dead_workers("killed") == 1  # that of the interface would see a timeout
    assert await rollout_status(store, rollout.rollout_id) == "requeuing"
