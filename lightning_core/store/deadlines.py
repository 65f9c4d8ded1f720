"""Deadlines: what is due is ended before an operation sees it, and at its time for as long as a caller waits."""

import asyncio
import logging
import math
import threading
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import asynccontextmanager, suppress

from lightning_core import lifecycle
from lightning_core.errors import NotFound, StoreClosed
from lightning_core.lifecycle import RolloutRecord
from lightning_core.store.backend import StoreBackend
from lightning_core.store.clock import Clock
from lightning_core.store.records import Records
from lightning_core.store.waits import Waits
from lightning_core.types import Attempt

logger = logging.getLogger(__name__)

_SET_SECONDS = 1.0
"""By how much the wall clock has to jump to have been set. It is slewed by less between two looks."""


class PauseDetector:
    """Knows since when workers can have given signs of life; shared by all views of a store.

    Workers could not deliver their heartbeats to a process that was not there or was stopped (a signal, a machine that
    slept, a blocked loop). When it goes on, all leases may be overdue at once. So no worker is lost to silence before
    that silence has lasted for a whole term that this process has seen.

    That it stood still is noticed in two ways: a caller that planned to look at the deadlines is late, and no other
    has looked since that look was due; or, where no one planned to, a worker that is late itself is the first to call
    for the length of a lease.

    Time is measured by the monotonic clock. Where the wall clock is set, the times of what runs are moved with it.

    Args:
        clock: Where the time comes from.
        lease_seconds: How long a worker that sends heartbeats may be silent.
    """

    def __init__(self, clock: Clock, lease_seconds: float) -> None:
        self._clock = clock
        self._lease_seconds = lease_seconds
        self._grace_seconds = lease_seconds / 60
        """How late a look may be without meaning anything."""
        self._lock = threading.Lock()
        self._plans: dict[Hashable, float] = {}
        self._began = self.looked_at = clock.monotonic()
        self._wall_offset = clock.now() - clock.monotonic()
        self._set_by = 0.0
        self._moved_by: dict[str, float] = {}

    def plan(self, who: Hashable, seconds: float | None) -> None:
        """Record in how many seconds a caller is going to look next; None for not at all."""
        self.notice()
        with self._lock:
            if seconds is None:
                self._plans.pop(who, None)
            else:
                self._plans[who] = self._clock.monotonic() + seconds

    def notice(self) -> None:
        """Look at the clocks: has this process stood still, or was the wall clock set?"""
        now = self._clock.monotonic()
        offset = self._clock.now() - now
        if abs(offset - self._wall_offset) <= _SET_SECONDS and not self._plans:
            self._wall_offset = offset  # nearly every time, and much faster without the lock
            return
        with self._lock:
            jump, self._wall_offset = offset - self._wall_offset, offset
            if abs(jump) > _SET_SECONDS:
                self._set_by += jump
                self._begin(now)
            elif any(self.looked_at <= due < now - self._grace_seconds for due in self._plans.values()):
                self._begin(now)

    def looked(self, *, late_sign: bool) -> None:
        """Note that the deadlines have been looked at.

        Args:
            late_sign: Whether the caller is a worker that is overdue, and alive.
        """
        now = self._clock.monotonic()
        if late_sign:
            with self._lock:
                if not self._plans and now - self.looked_at >= self._lease_seconds:
                    self._begin(now)
        self.looked_at = now

    def began(self) -> float:
        """Return since when workers can have given signs of life, in seconds since the epoch."""
        return self._began + self._wall_offset

    def to_move(self, run_id: str) -> float | None:
        """Return by how many seconds the times of a run have to be moved, and take it as done.

        None when nothing has to be done; 0 for a run that this process has not seen before.
        """
        with self._lock:
            before = self._moved_by.get(run_id)
            if before == self._set_by:
                return None
            self._moved_by[run_id] = self._set_by
            return self._set_by - (before or 0.0)

    def _begin(self, now: float) -> None:
        self._began = now
        self._plans.clear()


class Deadlines:
    """Ends what is due in one run. Silence counts from when this process began, or stood still last.

    Args:
        backend: Where deadlines are kept.
        run_id: Whose deadlines.
        clock: Where the time comes from, and how to wait.
        records: The run's records.
        waits: Tells of deadlines that are earlier than the one waited for.
        pauses: Says since when silence counts.
    """

    def __init__(
        self,
        backend: StoreBackend,
        run_id: str,
        clock: Clock,
        records: Records,
        waits: Waits,
        pauses: PauseDetector,
    ) -> None:
        self._backend = backend
        self._run_id = run_id
        self._clock = clock
        self._records = records
        self._waits = waits
        self._pauses = pauses
        self._moving = False
        self._waiters: dict[asyncio.AbstractEventLoop, int] = {}
        self._tasks: dict[asyncio.AbstractEventLoop, asyncio.Task[bool]] = {}

    async def look(self, *, gives_sign: Callable[[Attempt], bool] | None = None) -> None:
        """End what is due, so that the caller sees it as it is now.

        Args:
            gives_sign: Tells the attempts whose worker is calling just now, and so is not lost, however late it is.
        """
        # At once, before anything is awaited: the next caller has to see it, too.
        self._pauses.notice()
        if (by := self._pauses.to_move(self._run_id)) is not None:
            await self._move_times(by)
        if self._moving:
            return
        now = self._clock.now()
        due = await self._backend.due(self._run_id, now)
        if not due:
            self._pauses.looked_at = self._clock.monotonic()
            return
        signs = {record.rollout.rollout_id for record in due if gives_sign and _is_late(record, gives_sign)}
        self._pauses.looked(late_sign=bool(signs))
        heard_since = self._pauses.began()
        for record in due:
            deadline = lifecycle.deadline(record, heard_since=heard_since)
            if record.rollout.rollout_id in signs or (deadline is not None and now < deadline.at):
                continue
            try:
                changed = await self._records.change(
                    record.rollout.rollout_id, lambda record: lifecycle.expire(record, now, heard_since=heard_since)
                )
            except NotFound:  # deleted since
                continue
            if changed.latest is not None:
                await self._records.follow(changed, changed.latest)

    async def _next(self) -> float | None:
        """Return when something has to be ended next, in seconds since the epoch; None when nothing has a deadline."""
        at = await self._backend.next_deadline(self._run_id)
        if at is None or at > self._clock.now():
            return at
        # What is due has one more term, and there may be other deadlines before its end.
        timed, heard_since = await self._backend.due(self._run_id, math.inf), self._pauses.began()
        deadlines = [lifecycle.deadline(record, heard_since=heard_since) for record in timed]
        return min((each.at for each in deadlines if each is not None), default=None)

    async def _move_times(self, by: float) -> None:
        """Where the wall clock was set, move the times of what runs with it, and none of them is in the future.

        Those of shared data stay: each of the processes would move them. They have their machines' clocks in step.
        """
        if self._backend.is_shared:
            return
        now = self._clock.now()
        self._moving = True
        try:
            for record in await self._backend.due(self._run_id, math.inf):
                with suppress(NotFound):  # deleted since
                    await self._records.change(
                        record.rollout.rollout_id, lambda record: lifecycle.move_times(record, now, by)
                    )
        finally:
            self._moving = False

    @asynccontextmanager
    async def on_duty(self) -> AsyncIterator[None]:
        """Keep deadlines during the block.

        Raises:
            Exception: The backend's, after the block, when it cannot say what is due next.
        """
        loop = asyncio.get_running_loop()
        self._waiters[loop] = self._waiters.get(loop, 0) + 1
        task = self._tasks.get(loop)
        if task is None or task.done():
            task = loop.create_task(self._keep_deadlines(), name=f"deadlines of {self._run_id}")
            self._tasks[loop] = task
        try:
            yield
            if task.done() and not task.cancelled() and not task.result():
                await self._backend.next_deadline(self._run_id)  # the waiter meets the trouble by itself
        finally:
            self._waiters[loop] -= 1
            if self._waiters[loop] == 0:
                del self._waiters[loop]
                task = self._tasks.pop(loop)
                task.cancel()
                await asyncio.wait((task,))

    async def _keep_deadlines(self) -> bool:
        """Return when there are none to keep any more.

        Returns:
            Whether they were kept until then.
        """
        me = asyncio.current_task()
        try:
            while True:
                ticket = self._waits.for_deadline()
                try:
                    await self.look()
                    deadline = await self._next()
                    seconds = None
                    if deadline is not None:
                        self._waits.expect(ticket, deadline)
                        seconds = max(0.0, deadline - self._clock.now())
                    self._pauses.plan(me, seconds)
                    await self._clock.wait(ticket.future, seconds)
                finally:
                    self._waits.leave_deadline(ticket)
        except StoreClosed:
            return True  # the waiters have been called
        except Exception:
            # The waiters ask again, and meet the same trouble where it can be raised.
            logger.warning("lightning.deadlines_not_kept run_id=%s", self._run_id, exc_info=True)
            self._waits.call_everyone()
            return False
        finally:
            self._pauses.plan(me, None)


def _is_late(record: RolloutRecord, gives_sign: Callable[[Attempt], bool]) -> bool:
    deadline, attempt = lifecycle.deadline(record), record.latest
    return deadline is not None and deadline.is_fault and attempt is not None and gives_sign(attempt)
