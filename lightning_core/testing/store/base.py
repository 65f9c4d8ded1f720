"""What all groups of the suite share: the store to test, its clock, and small helpers."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from typing import Any, TypeVar
from unittest.mock import patch

import pytest
import pytest_asyncio

from lightning_core.store import LightningStore
from lightning_core.testing.clock import FakeClock
from lightning_core.types import AttemptedRollout, RolloutConfig, Span

T = TypeVar("T")

PATIENCE_SECONDS = 20.0
"""Real time after which a wait that should have ended is an error. No test waits for it to pass."""

LEASE_SECONDS = 30.0
"""How long a worker that sends heartbeats may be silent in a store that was not told otherwise."""


class StoreBehaviour:
    """Makes the store that the tests of a group use."""

    pytestmark = pytest.mark.asyncio

    async def make_store(self, *, clock: FakeClock, run_id: str) -> LightningStore:
        """Return an empty store for this run, which takes its time from this clock."""
        raise NotImplementedError("override make_store: return an empty store")

    async def reopen_store(self, store: LightningStore, *, clock: FakeClock) -> LightningStore | None:
        """Close a store and return a new one over the same data, or None where nothing outlives the store."""
        return None

    async def reopen_after_kill(self, store: LightningStore, *, clock: FakeClock) -> LightningStore | None:
        """Return a new store over what a kill would leave of this one now; None where nothing outlives it.

        By default, that is what `reopen_store` returns where closing does nothing. Override it where an open store
        locks its data: open a copy of them.
        """

        async def killed() -> None:
            pass

        with patch.object(store, "aclose", killed):
            return await self.reopen_store(store, clock=clock)

    @pytest.fixture
    def clock(self) -> FakeClock:
        return FakeClock()

    @pytest_asyncio.fixture
    async def store(self, clock: FakeClock) -> AsyncIterator[LightningStore]:
        store = await self.make_store(clock=clock, run_id="run-under-test")
        yield store
        await store.aclose()


async def soon(awaitable: Awaitable[T]) -> T:
    """Return what it gives, or fail instead of hanging."""
    return await asyncio.wait_for(awaitable, PATIENCE_SECONDS)


def present(value: T | None) -> T:
    """Return a value that has to be there."""
    assert value is not None
    return value


async def turn(times: int) -> None:
    """Let the event loop turn so many times."""
    for _ in range(times):
        await asyncio.sleep(0)


async def claim(store: LightningStore, worker_id: str | None = None) -> AttemptedRollout:
    """Claim a rollout that has to be there."""
    claimed = await store.dequeue_rollout(worker_id)
    assert claimed is not None, "the queue is empty"
    return claimed


async def begin(
    store: LightningStore, input: Any = "task", worker_id: str | None = None, **config: Any
) -> AttemptedRollout:
    """Begin a rollout with these limits and this retry policy, past the queue."""
    return await store.start_rollout(input, config=RolloutConfig(**config), worker_id=worker_id)


async def rollout_status(store: LightningStore, rollout_id: str) -> str:
    """Return the rollout's status, and check that its end time goes with it."""
    rollout = present(await store.get_rollout_by_id(rollout_id))
    assert (rollout.end_time is not None) == (rollout.status in ("succeeded", "failed", "cancelled"))
    return rollout.status


async def attempt_statuses(store: LightningStore, rollout_id: str) -> list[str]:
    """Return the statuses of all attempts, oldest first, and check that they are numbered from 1."""
    attempts = await store.query_attempts(rollout_id)
    assert [attempt.sequence_id for attempt in attempts] == list(range(1, len(attempts) + 1))
    return [attempt.status for attempt in attempts]


async def totals(store: LightningStore) -> dict[str, Any]:
    """Return the numbers of what the store holds."""
    return {key: value for key, value in (await store.statistics()).items() if key.startswith("total_")}


def span_of(of: AttemptedRollout, name: str = "step", *, sequence_id: int = 0, **fields: Any) -> Span:
    """Make a span of this attempt; the store numbers it unless told otherwise."""
    return Span.from_attributes(
        rollout_id=of.rollout_id,
        attempt_id=of.attempt.attempt_id,
        sequence_id=sequence_id,
        name=name,
        **{"attributes": {}, **fields},
    )


def require(store: LightningStore, capability: str) -> None:
    """Skip the test when the store does not say that it has this capability."""
    if not store.capabilities.get(capability):
        pytest.skip(f"{type(store).__name__} is not {capability}, by its capabilities")
