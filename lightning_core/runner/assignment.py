"""The attempt that a runner works on, and whether the store still wants it."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from lightning_core.errors import AgentTimeout, AttemptStopped, NotFound, StoreUnavailable
from lightning_core.lifecycle import ACTIVE_ATTEMPT, ENDED, QUEUED
from lightning_core.store import LightningStore
from lightning_core.types import AttemptedRollout, Rollout

logger = logging.getLogger(__name__)

LISTEN_AFTER_SECONDS = 0.2
"""When to begin to wait for an attempt's end in the store: quick ones are over by then, and cost nothing."""


class Assignment:
    """An attempt that is being executed here.

    Made in the event loop of its runner; `look` may be called in any other.

    Args:
        rollout: The rollout, as it was claimed.
        store: Where it was claimed.
    """

    def __init__(self, rollout: AttemptedRollout, store: LightningStore) -> None:
        self.rollout_id = rollout.rollout_id
        self.attempt_id = rollout.attempt.attempt_id
        self._rollout: Rollout = rollout
        self._store = store
        self._loop = asyncio.get_running_loop()
        self.stopped: asyncio.Future[Exception] = self._loop.create_future()
        """Done when the store does not want the attempt any more; the result says why."""

    @property
    def unresponsive_seconds(self) -> float | None:
        """How long the attempt may be silent, as the rollout's config was seen last; None for no limit."""
        return self._rollout.config.unresponsive_seconds

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        """Let the store tell, during the block, when the rollout ends by somebody else's word, or is deleted.

        The store notifies of a rollout's end only. That an attempt is given up while its rollout goes on (a lost
        lease, a rollout that somebody queued again) comes out with the next heartbeat, by `look`.
        """
        task: asyncio.Task[None] | None = None

        def listen() -> None:
            nonlocal task
            task = self._loop.create_task(self._listen(), name=f"end of {self.rollout_id}")

        timer = self._loop.call_later(LISTEN_AFTER_SECONDS, listen)
        try:
            yield
        finally:
            timer.cancel()
            if task is not None:
                task.cancel()
                await asyncio.wait((task,))

    async def look(self) -> None:
        """Look whether the store still wants the attempt."""
        rollout = await self._store.get_rollout_by_id(self.rollout_id)
        if rollout is None or self._is_given_up(rollout):
            self._stop(rollout)
            return
        self._rollout = rollout

    async def _listen(self) -> None:
        try:
            ended = (await self._store.wait_for_rollouts(rollout_ids=[self.rollout_id]))[0]
        except NotFound:
            self._stop(None)
        # Heartbeats look, too; and if the store is gone for good, the report of the outcome says so.
        except StoreUnavailable as exc:
            logger.info("lightning.rollout_not_watched rollout_id=%s: %s", self.rollout_id, exc)
        except Exception as exc:
            logger.warning("lightning.rollout_not_watched rollout_id=%s", self.rollout_id, exc_info=exc)
        else:
            self._stop(ended)

    def _is_given_up(self, rollout: Rollout) -> bool:
        """Whether the attempt cannot change the rollout's outcome any more. An unresponsive one may be revived."""
        attempt = rollout.attempt if isinstance(rollout, AttemptedRollout) else None
        if rollout.status in ENDED or attempt is None or attempt.attempt_id != self.attempt_id:
            return True
        was_queued_again = rollout.status in QUEUED and attempt.status in ACTIVE_ATTEMPT
        return was_queued_again or "fault" in (attempt.metadata or {})

    def _stop(self, rollout: Rollout | None) -> None:
        reason = self._reason(rollout)
        try:
            self._loop.call_soon_threadsafe(self._settle, reason)
        except RuntimeError:
            if not self._loop.is_closed():  # a closed loop runs nothing
                raise

    def _settle(self, reason: Exception) -> None:
        if not self.stopped.done():
            self.stopped.set_result(reason)

    def _reason(self, rollout: Rollout | None) -> Exception:
        if rollout is None:
            return AttemptStopped(f"rollout {self.rollout_id} was deleted")
        if rollout.status == "cancelled":
            return AttemptStopped(f"rollout {self.rollout_id} was cancelled")
        attempt = rollout.attempt if isinstance(rollout, AttemptedRollout) else None
        limit = rollout.config.timeout_seconds
        if attempt is not None and attempt.attempt_id == self.attempt_id and attempt.status == "timeout" and limit:
            return AgentTimeout(limit)  # the store's clock was a little ahead
        return AttemptStopped(f"attempt {self.attempt_id} was given up; its rollout is {rollout.status!r} by now")
