"""How rollouts go that runners elsewhere work on, where the store is served elsewhere, too: looked up, not seen."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from lightning_core.errors import NotFound, StoreClosed, StoreError
from lightning_core.execution.observed import RolloutObserver
from lightning_core.lifecycle import ACTIVE_ATTEMPT, ENDED
from lightning_core.store import LightningStore
from lightning_core.types import AttemptedRollout, PaginatedResult, Rollout

logger = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
"""The time between two looks, which are for people who watch: nothing else waits for them."""

LAST_SECONDS = 10.0
"""How long the last look may take, when the run has ended."""

INTERRUPTED_SECONDS = 0.3
"""The same, when it has failed or was interrupted: that should not take 2 s."""

MOST_RUNNING = 1000
"""How many rollouts that run are looked at."""

OVERLAP = 100
"""How many of the known rollouts are looked at again."""


@asynccontextmanager
async def following(store: LightningStore, observer: RolloutObserver | None) -> AsyncIterator[None]:
    """Tell an observer how rollouts go during the block, and at its end of all that have ended in it.

    Two queries a second, however many rollouts there are; for each attempt that ends, what the observer asks.

    Args:
        store: Where runners report.
        observer: Who is told; None for nobody.

    Raises:
        StoreError: When the store cannot be asked at the beginning.
    """
    if observer is None:
        yield
        return
    follower = _Follower(store, observer)
    await follower.begin()
    is_over = asyncio.Event()
    task = asyncio.create_task(follower.run(is_over), name="progress of runners elsewhere")
    seconds = INTERRUPTED_SECONDS
    try:
        yield
        seconds = LAST_SECONDS
    finally:
        is_over.set()
        await asyncio.wait({task}, timeout=seconds)
        if not task.done() and seconds == LAST_SECONDS:
            logger.warning("lightning.progress_not_complete run_id=%s; the store was slow to tell", store.run_id)
        task.cancel()
        await asyncio.wait({task})


class _Follower:
    def __init__(self, store: LightningStore, observer: RolloutObserver) -> None:
        self._store = store
        self._observer = observer
        self._ended = 0
        """How many rollouts had ended at the last look."""
        self._known: set[str] = set()
        """Of these, those that the observer knows of, and the newest ones that had ended before."""
        self._running: dict[str, str] = {}
        """The rollouts of the attempts that ran at the last look."""

    async def begin(self) -> None:
        self._ended = (await self._store.query_rollouts(status_in=tuple(ENDED), limit=1)).total
        newest = await self._newest()
        self._ended, self._known = newest.total, {each.rollout_id for each in newest}

    async def run(self, is_over: asyncio.Event) -> None:
        """Look at intervals, and once more when it is over."""
        over = asyncio.create_task(is_over.wait(), name="end of the progress")
        try:
            is_last = False
            while not is_last:
                await asyncio.wait({over}, timeout=LOOK_SECONDS)
                is_last = over.done()
                try:
                    await self._look()
                except StoreClosed:  # by the algorithm, perhaps
                    return
                except StoreError as exc:
                    logger.warning("lightning.progress_not_known run_id=%s: %s", self._store.run_id, exc)
        finally:
            over.cancel()

    async def _look(self) -> None:
        running = {
            rollout.attempt.attempt_id: rollout
            for rollout in await self._store.query_rollouts(status_in=("preparing", "running"), limit=MOST_RUNNING)
            if isinstance(rollout, AttemptedRollout)
        }
        for attempt_id, rollout in running.items():
            if attempt_id not in self._running:
                self._running[attempt_id] = rollout.rollout_id
                await self._observer.began(rollout)
        newest = await self._newest()
        for each in newest:
            if each.rollout_id not in self._known:
                await self._tell(each)
                self._known.add(each.rollout_id)
        self._ended = newest.total
        for attempt_id, rollout_id in list(self._running.items()):
            if attempt_id not in running:
                await self._tell_of_attempt(rollout_id, attempt_id)

    async def _newest(self) -> PaginatedResult[Rollout]:
        """Return those that have ended since the last look, and a few more: some are written later than they ended."""
        offset = max(0, self._ended - OVERLAP)
        return await self._store.query_rollouts(status_in=tuple(ENDED), sort_by="end_time", offset=offset)

    async def _tell(self, rollout: Rollout) -> None:
        """Tell of the attempt by which a rollout ended, unless nobody ever worked on it."""
        if isinstance(rollout, AttemptedRollout):
            self._running.pop(rollout.attempt.attempt_id, None)
            await self._observer.ended(self._store, rollout.attempt)

    async def _tell_of_attempt(self, rollout_id: str, attempt_id: str) -> None:
        """Tell of an attempt that has ended, while its rollout goes on, or has been begun anew."""
        try:
            attempts = await self._store.query_attempts(rollout_id)
        except NotFound:
            del self._running[attempt_id]
            return
        for attempt in attempts:
            if attempt.attempt_id == attempt_id and attempt.status not in ACTIVE_ATTEMPT:
                del self._running[attempt_id]
                await self._observer.ended(self._store, attempt)
