"""Tells plugins that stay with the algorithm how rollouts go that run elsewhere."""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Protocol

from lightning_core.agent import LitAgent
from lightning_core.errors import NotFound, StoreClosed, StoreError
from lightning_core.lifecycle import ACTIVE_ATTEMPT, ENDED
from lightning_core.plugins import Hooks
from lightning_core.rewards import sound_final_reward
from lightning_core.runner.outcome import has_succeeded_by
from lightning_core.store import LightningStore
from lightning_core.store.threaded import ForwardingStore
from lightning_core.trainer.runners import RunnersSide
from lightning_core.types import Attempt, AttemptedRollout, Rollout
from lightning_http.sending import HOOKS_OF_RUNNERS, stays_with_algorithm

logger = logging.getLogger(__name__)


class RolloutObserver(Protocol):
    """Is told, in the algorithm's process, of the rollouts that run elsewhere."""

    async def began(self, rollout: AttemptedRollout) -> None:
        """A runner claimed a rollout."""
        ...

    async def ended(self, store: LightningStore, attempt: Attempt) -> None:
        """A runner reported on an attempt that it had claimed, and the report is stored."""
        ...


def observer_of(runner: object) -> RolloutObserver | None:
    """Return what tells plugins that stay here of rollouts that run elsewhere; None where there are none."""
    if not isinstance(runner, RunnersSide):
        return None
    staying = runner.hooks.only(stays_with_algorithm)
    return _Plugins(staying, runner.agent) if any(map(staying.has, HOOKS_OF_RUNNERS)) else None


class _Plugins:
    def __init__(self, hooks: Hooks, agent: LitAgent[Any]) -> None:
        self._hooks = hooks
        self._agent = agent

    async def began(self, rollout: AttemptedRollout) -> None:
        if self._hooks.has("lightning_rollout_start"):
            await self._tell("lightning_rollout_start", rollout=rollout, attempt=rollout.attempt)

    async def ended(self, store: LightningStore, attempt: Attempt) -> None:
        if not self._hooks.has("lightning_rollout_end"):
            return
        rollout = await store.get_rollout_by_id(attempt.rollout_id)
        if rollout is None:
            return
        spans = list(await store.query_spans(attempt.rollout_id, attempt.attempt_id))
        reward = sound_final_reward(spans) if has_succeeded_by(rollout, attempt) else None
        await self._tell("lightning_rollout_end", rollout=rollout, attempt=attempt, reward=reward, spans=spans)

    async def _tell(self, hook: str, **arguments: Any) -> None:
        await self._hooks.emit(hook, agent=self._agent, runner=None, **arguments)


class ObservedStore(ForwardingStore):
    """Hands everything to a store, and tells an observer of claims and of reports before it answers them.

    Args:
        store: The store.
        observer: Is told.
    """

    def __init__(self, store: LightningStore, observer: RolloutObserver) -> None:
        self._store = store
        self._observer = observer
        self._running: set[str] = set()
        """The attempts of which it was told that they have begun, and not that they have ended."""

    def target(self) -> LightningStore:
        return self._store

    async def _call(self, name: str, arguments: dict[str, Any]) -> Any:
        answer = await super()._call(name, arguments)
        if name in ("dequeue_rollout", "dequeue_many_rollouts"):
            for claimed in answer if name == "dequeue_many_rollouts" else filter(None, [answer]):
                self._running.add(claimed.attempt.attempt_id)
                await self._observer.began(claimed)
        elif name in ("update_attempt", "report_fault") and answer.status not in ACTIVE_ATTEMPT:
            was_running = answer.attempt_id in self._running
            self._running.discard(answer.attempt_id)
            if was_running:
                await self._observer.ended(self._store, answer)
        return answer


FOLLOW_SECONDS = 1.0
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
        observer: Is told of claims and reports; None for no observer.

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
        self._known: set[str] = set()
        """The rollouts that have ended and that the observer knows of, and the newest ones that had ended before."""
        self._running: dict[str, str] = {}
        """The rollouts of the attempts that ran at the last look."""

    async def begin(self) -> None:
        self._known = {each.rollout_id for each in await self._ended(2 * OVERLAP)}

    async def run(self, is_over: asyncio.Event) -> None:
        """Look at intervals, and once more when it is over."""
        is_last = False
        while not is_last:
            with suppress(TimeoutError):
                async with asyncio.timeout(FOLLOW_SECONDS):
                    is_last = await is_over.wait()
            try:
                await self._look()
            except StoreClosed:  # by the algorithm, perhaps
                return
            except StoreError as exc:
                logger.warning("lightning.progress_not_known run_id=%s: %s", self._store.run_id, exc)

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
        for each in reversed(await self._newest()):
            if each.rollout_id not in self._known:
                await self._tell(each)
                self._known.add(each.rollout_id)
        for attempt_id, rollout_id in list(self._running.items()):
            if attempt_id not in running:
                await self._tell_of_attempt(rollout_id, attempt_id)

    async def _newest(self) -> Sequence[Rollout]:
        """Return those that have ended since the last look, and a few more: some are written later than they ended.

        The newest are the first: what a store has to skip, it may have to look at.
        """
        limit = 2 * OVERLAP
        while True:
            page, known = await self._ended(limit), 0
            for number, each in enumerate(page, start=1):
                known = known + 1 if each.rollout_id in self._known else 0
                if known == OVERLAP:
                    return page[:number]
            if len(page) < limit:
                return page
            limit *= 2

    async def _ended(self, limit: int) -> Sequence[Rollout]:
        return await self._store.query_rollouts(
            status_in=tuple(ENDED), sort_by="end_time", sort_order="desc", limit=limit
        )

    async def _tell(self, rollout: Rollout) -> None:
        """Tell of the attempt by which a rollout ended, unless no worker ever executed it."""
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
