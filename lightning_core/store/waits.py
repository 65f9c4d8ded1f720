"""Waiting for work and for results: notified by changes, whichever thread or event loop they come from."""

import asyncio
import functools
import logging
import threading
from collections import OrderedDict, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Hashable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from lightning_core.errors import StoreClosed
from lightning_core.lifecycle import ENDED, QUEUED
from lightning_core.store.backend import Change, StoreBackend
from lightning_core.store.clock import Clock


class Listeners:
    """Listeners by run. Any thread may add one, take it away, or tell them."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a garbage collection may end a forgotten listener while it is held
        self._by_run: defaultdict[str, list[Callable[[Change], None]]] = defaultdict(list)

    def add(self, run_id: str, listener: Callable[[Change], None]) -> Callable[[], None]:
        """Tell the listener of this run's changes, until the returned function is called."""
        with self._lock:
            self._by_run[run_id].append(listener)

        def stop() -> None:
            with self._lock:
                listeners = self._by_run.get(run_id, [])
                if listener in listeners:
                    listeners.remove(listener)
                if not listeners:
                    self._by_run.pop(run_id, None)

        return stop

    def runs(self) -> list[str]:
        """Return the runs that have listeners."""
        with self._lock:
            return list(self._by_run)

    def tell(self, changes: Sequence[Change]) -> None:
        """Call the listeners of the runs of these changes."""
        for change in changes:
            with self._lock:
                listeners = tuple(self._by_run.get(change.run_id, ()))
            for listener in listeners:
                listener(change)


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
        self._began = self._looked_at = clock.monotonic()
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
            elif any(self._looked_at <= due < now - self._grace_seconds for due in self._plans.values()):
                self._begin(now)

    def looked(self, *, late_sign: bool) -> None:
        """Note that the deadlines have been looked at.

        Args:
            late_sign: Whether the caller is a worker that is overdue, and alive.
        """
        now = self._clock.monotonic()
        if late_sign:
            with self._lock:
                if not self._plans and now - self._looked_at >= self._lease_seconds:
                    self._begin(now)
        self._looked_at = now

    def began(self) -> float:
        """Return since when workers can have given signs of life, in seconds since the epoch."""
        return self._began + self._wall_offset

    def to_move(self, run_id: str) -> float | None:
        """Return by how many seconds the times of a run have to be moved, and take it as done.

        None when nothing has to be done; 0 for a run that this process has not seen before.
        """
        if self._moved_by.get(run_id) == self._set_by:
            return None
        with self._lock:
            before = self._moved_by.get(run_id)
            if before == self._set_by:
                return None
            self._moved_by[run_id] = self._set_by
            return self._set_by - (before or 0.0)

    def _begin(self, now: float) -> None:
        self._began = now
        self._plans.clear()


class Ticket:
    """One waiter: a future of its event loop, which any thread may complete."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.future: asyncio.Future[None] = self._loop.create_future()

    def call(self) -> bool:
        """Complete the future, from any thread.

        Returns:
            Whether the waiter can hear it: its loop may be closed.
        """
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if running is self._loop:
            self._complete()
            return True
        try:
            self._loop.call_soon_threadsafe(self._complete)
        except RuntimeError:
            if not self._loop.is_closed():
                raise
            return False
        return True

    def _complete(self) -> None:
        if not self.future.done():
            self.future.set_result(None)


class Calls:
    """The calls of a store and its views that are under way, in whatever thread or event loop."""

    def __init__(self) -> None:
        self._under_way: set[object] = set()
        self._closing: list[Ticket] = []

    def begin(self) -> object:
        """Begin a call; return what ends it."""
        call = object()
        self._under_way.add(call)
        return call

    def end(self, call: object) -> None:
        """End a call."""
        self._under_way.discard(call)
        if self._closing and not self._under_way:
            for ticket in tuple(self._closing):
                ticket.call()

    async def all_ended(self) -> None:
        """Return when no call is under way."""
        while self._under_way:
            ticket = Ticket()
            self._closing.append(ticket)
            try:
                if self._under_way:  # else the last one has ended just now, and may not have seen the ticket
                    await ticket.future
            finally:
                self._closing.remove(ticket)


def counted(method: Callable[..., Awaitable[Any]]) -> Callable[..., Coroutine[Any, Any, Any]]:
    """Return an operation of a store that closing the store waits for: its `_calls` count it."""

    @functools.wraps(method)
    async def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        calls: Calls = self._calls
        under_way = calls.begin()
        try:
            return await method(self, *args, **kwargs)
        finally:
            calls.end(under_way)

    return call


class Waits:
    """The waiters of one run, and what each of them waits for.

    A queued rollout calls one waiter for work, the one that has waited longest; a waiter that leaves without having
    looked hands its call on. An ended rollout calls those who now have enough of what they wait for.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._work: OrderedDict[Ticket, None] = OrderedDict()
        self._results: dict[str, dict[Ticket, None]] = {}
        self._wanted: dict[Ticket, frozenset[str]] = {}
        self._pending: dict[Ticket, set[str]] = {}
        """What a ticket wants and what has not ended."""
        self._bearable: dict[Ticket, int] = {}
        """How many of its pending rollouts a ticket does not wait for."""
        self._watchdogs: dict[Ticket, float] = {}
        self._closed = False

    def note(self, change: Change) -> None:
        """Wake the waiters for this change. Returns at once; any thread may call it."""
        if not (self._work or self._results or self._watchdogs):
            return  # a new waiter looks by itself before it waits
        called: list[Ticket] = []
        if change.status in QUEUED:
            self._call_for_work()
        with self._lock:
            if change.status is None or change.status in ENDED:
                for ticket in self._results.get(change.rollout_id, ()):
                    self._pending[ticket].discard(change.rollout_id)
                    if len(self._pending[ticket]) <= self._bearable[ticket] or change.status is None:
                        called.append(ticket)
            if change.deadline is not None:
                called += [ticket for ticket, until in self._watchdogs.items() if change.deadline < until]
        for ticket in called:
            ticket.call()

    def for_work(self) -> Ticket:
        """Queue up for the next rollout that is queued. Look for work after this, before waiting."""
        return self._enter(lambda ticket: self._work.update({ticket: None}))

    def leave_work(self, ticket: Ticket, *, unanswered: bool) -> None:
        """Stop waiting for work. Calls that were not followed by a look go to the next in the line.

        Args:
            ticket: What `for_work` returned last.
            unanswered: Whether an earlier ticket was called, too, and no look was finished since.
        """
        with self._lock:
            calls = int(unanswered) + (ticket not in self._work)
            self._work.pop(ticket, None)
        for _ in range(calls):
            self._call_for_work()

    def _call_for_work(self) -> None:
        """Wake the waiter that has waited longest for work and can hear it."""
        while True:
            with self._lock:
                if not self._work:
                    return
                ticket = self._work.popitem(last=False)[0]
            if ticket.call():
                return

    def for_results(self, rollout_ids: Iterable[str], enough: int) -> Ticket:
        """Wait until so many of these rollouts have ended, or look again when one of them is deleted.

        Look at them after this, before waiting.
        """
        wanted = frozenset(rollout_ids)

        def enter(ticket: Ticket) -> None:
            self._wanted[ticket] = wanted
            self._pending[ticket] = set(wanted)
            self._bearable[ticket] = len(wanted) - enough
            for rollout_id in wanted:
                self._results.setdefault(rollout_id, {})[ticket] = None

        return self._enter(enter)

    def narrow(self, ticket: Ticket, rollout_ids: Collection[str], needed: int) -> None:
        """Wait only for so many of these of the ticket's rollouts: the others were found to have ended, or missing."""
        with self._lock:
            self._pending[ticket].intersection_update(rollout_ids)
            self._bearable[ticket] = len(rollout_ids) - needed
            called = len(self._pending[ticket]) <= self._bearable[ticket]
        if called:
            ticket.call()

    def leave_results(self, ticket: Ticket) -> None:
        """Stop waiting for results."""
        with self._lock:
            for rollout_id in self._wanted[ticket]:
                waiting = self._results[rollout_id]
                del waiting[ticket]
                if not waiting:
                    del self._results[rollout_id]
            del self._wanted[ticket], self._pending[ticket], self._bearable[ticket]

    def for_deadline(self) -> Ticket:
        """Wait until a deadline appears at all; `expect` narrows it."""
        return self._enter(lambda ticket: self._watchdogs.update({ticket: float("inf")}))

    def expect(self, ticket: Ticket, deadline: float) -> None:
        """Let only earlier deadlines than this one call the ticket."""
        with self._lock:
            self._watchdogs[ticket] = deadline

    def leave_deadline(self, ticket: Ticket) -> None:
        """Stop waiting for a deadline."""
        with self._lock:
            self._watchdogs.pop(ticket, None)

    def call_everyone(self) -> None:
        """Make everybody who waits look again."""
        with self._lock:
            tickets = {*self._work, *self._watchdogs, *self._pending}
            self._work.clear()
        for ticket in tickets:
            ticket.call()

    def check_open(self) -> None:
        """Return if there may be waiters.

        Raises:
            StoreClosed: After `close`.
        """
        if self._closed:
            raise StoreClosed("the store is closed")

    def close(self) -> None:
        """Make everybody who waits, now or later, raise `StoreClosed`."""
        with self._lock:
            self._closed = True
        self.call_everyone()

    def _enter(self, register: Callable[[Ticket], None]) -> Ticket:
        ticket = Ticket()
        with self._lock:
            self.check_open()
            register(ticket)
        return ticket


logger = logging.getLogger(__name__)


class Watchdogs:
    """Ends what is due at its time, for as long as a caller waits.

    Args:
        backend: Where deadlines are kept.
        run_id: Whose deadlines.
        clock: Where the time comes from, and how to wait.
        waits: Tells of deadlines that are earlier than the one waited for.
        pauses: Is told when the next look is going to be.
        look: Ends what is due.
        next_deadline: Returns when to look next, in seconds since the epoch.
    """

    def __init__(
        self,
        backend: StoreBackend,
        run_id: str,
        clock: Clock,
        waits: Waits,
        pauses: PauseDetector,
        look: Callable[[], Awaitable[None]],
        next_deadline: Callable[[], Awaitable[float | None]],
    ) -> None:
        self._backend = backend
        self._run_id = run_id
        self._clock = clock
        self._waits = waits
        self._pauses = pauses
        self._look = look
        self._next_deadline = next_deadline
        self._waiters: dict[asyncio.AbstractEventLoop, int] = {}
        self._tasks: dict[asyncio.AbstractEventLoop, asyncio.Task[bool]] = {}

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
                self._waits.check_open()
                await self._look()
                ticket = self._waits.for_deadline()
                try:
                    deadline = await self._next_deadline()
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
