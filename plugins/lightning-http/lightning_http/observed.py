"""The store as it is served to runners: they are told when the run has ended, and others how their work goes."""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Protocol

from lightning_core.errors import NotFound, StoreClosed, StoreError
from lightning_core.lifecycle import ACTIVE_ATTEMPT, ENDED
from lightning_core.store import LightningStore
from lightning_core.store.threaded import ForwardingStore
from lightning_core.types import Attempt, AttemptedRollout, Rollout

logger = logging.getLogger(__name__)

BACK_SECONDS = 2.0
"""How long after its last report a worker may come back for more work; one that does not has left."""

LOOK_SECONDS = 0.2
"""How often to look who has left, once the run has ended."""


class RolloutObserver(Protocol):
    """Is told, in the algorithm's process, of the rollouts that run elsewhere."""

    async def began(self, rollout: AttemptedRollout) -> None:
        """A runner claimed a rollout."""
        ...

    async def ended(self, store: LightningStore, attempt: Attempt) -> None:
        """A runner reported on an attempt that it had claimed, and the report is stored."""
        ...


class ObservedStore(ForwardingStore):
    """Hands everything to a store, and knows which workers have not heard yet that the run has ended.

    Args:
        store: The store.
        observer: Is told of claims and of reports; each is answered when it has been told. None for no observer.
    """

    def __init__(self, store: LightningStore, observer: RolloutObserver | None = None) -> None:
        self._store = store
        self._observer = observer
        self._has_ended = False
        self._working: dict[str, set[str]] = {}
        """The workers that have claimed something and have not come back, with the attempts that they have not
        reported on."""
        self._reported: dict[str, float] = {}
        """When those of them that have reported on all did so, in the time of the event loop."""
        self._gone: list[str] = []
        """What tells the ids of dead workers."""
        self._asking = 0
        """How many claims are under way."""
        self._all_told = asyncio.Event()

    def target(self) -> LightningStore:
        return self._store

    async def _call(self, name: str, arguments: dict[str, Any]) -> Any:
        if name in ("dequeue_rollout", "dequeue_many_rollouts"):
            claimed = await self._take(arguments)
            return claimed if name == "dequeue_many_rollouts" else next(iter(claimed), None)
        if name == "end_run":
            self._has_ended = True
        answer = await super()._call(name, arguments)
        if name == "begin_run":
            self._has_ended = False
        if name == "end_run":
            self._look_who_is_left()
        return await self._told(answer) if name in ("update_attempt", "report_fault") else answer

    async def all_told(self) -> None:
        """Return when all have heard of the end who wait for work, or come back from what they had claimed.

        A worker that has reported and does not come back has left, as one does that has reached its `max_rollouts`.
        One whose attempt was taken from it is not waited for.
        """
        await self._forget_lost()
        while not self._all_told.is_set():
            oldest = asyncio.get_running_loop().time() - BACK_SECONDS
            self._forget([each for each, reported in self._reported.items() if reported <= oldest])
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._all_told.wait()

    def forget(self, token: str) -> None:
        """Record that the workers whose ids contain a token do not come back."""
        self._gone.append(token)
        self._forget([each for each in self._working if token in each])

    def is_executing(self, token: str) -> bool:
        """Whether one of the workers whose ids contain a token has not reported on what it claimed."""
        return any(attempts and token in worker_id for worker_id, attempts in self._working.items())

    async def _take(self, arguments: dict[str, Any]) -> Sequence[AttemptedRollout]:
        worker_id = arguments.get("worker_id")
        if worker_id is not None:
            self._working.pop(worker_id, None)
            self._reported.pop(worker_id, None)
        self._asking += 1
        try:
            claimed: Sequence[AttemptedRollout] = await super()._call("dequeue_many_rollouts", arguments)
            if worker_id is not None and any(token in worker_id for token in self._gone):
                await self._take_back(claimed)
                return []
        finally:
            # From here on to the answer nothing is waited for: a server that stops now still gives it.
            self._asking -= 1
            self._look_who_is_left()
        if claimed and worker_id is not None:
            self._working[worker_id] = {rollout.attempt.attempt_id for rollout in claimed}
        if self._observer is not None:
            for rollout in claimed:
                await self._observer.began(rollout)
        return claimed

    async def _told(self, attempt: Attempt) -> Attempt:
        """Tell the observer of an attempt that has ended, once."""
        unreported = self._working.get(attempt.worker_id or "", set())
        if attempt.status not in ACTIVE_ATTEMPT and attempt.attempt_id in unreported:
            unreported.remove(attempt.attempt_id)
            if not unreported and attempt.worker_id is not None:
                self._reported[attempt.worker_id] = asyncio.get_running_loop().time()
            if self._observer is not None:
                await self._observer.ended(self._store, attempt)
        return attempt

    async def _take_back(self, claimed: Sequence[AttemptedRollout]) -> None:
        """Queue again what was claimed by a request that its worker's death has overtaken."""
        for rollout in claimed:
            await self._store.report_fault(rollout.rollout_id, rollout.attempt.attempt_id, "its worker has died")

    async def _forget_lost(self) -> None:
        """Stop waiting for workers that lost their attempt: its lease lapsed, or its time was up."""
        if any(self._working.values()):
            try:
                workers = await self._store.query_workers()
            except StoreError as exc:  # such as closed, by the algorithm; the wait has an end anyway
                logger.info("lightning.workers_not_known run_id=%s: %s", self._store.run_id, exc)
            else:
                self._forget([each.worker_id for each in workers if each.status == "unknown"])

    def _forget(self, worker_ids: Iterable[str]) -> None:
        for worker_id in worker_ids:
            self._working.pop(worker_id, None)
            self._reported.pop(worker_id, None)
        self._look_who_is_left()

    def _look_who_is_left(self) -> None:
        if self._has_ended and not self._working and not self._asking:
            self._all_told.set()


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
        over = asyncio.create_task(is_over.wait(), name="end of the progress")
        try:
            is_last = False
            while not is_last:
                await asyncio.wait({over}, timeout=FOLLOW_SECONDS)
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
