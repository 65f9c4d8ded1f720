"""Waiting for work and for results: notified by changes, whichever thread or event loop they come from."""

import asyncio
import threading
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain

from lightning_core.errors import StoreClosed
from lightning_core.lifecycle import ENDED, QUEUED
from lightning_core.store.backend import Change


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


class Ticket:
    """One waiter: a future of its event loop, which any thread may complete.

    Args:
        rollout_ids: The rollouts whose ends it waits for, if any.
        enough: For how many of them.
    """

    def __init__(self, rollout_ids: Iterable[str] = (), enough: int = 0) -> None:
        self.wanted = frozenset(rollout_ids)
        self.pending = set(self.wanted)
        """What it wants and what has not ended."""
        self.bearable = len(self.wanted) - enough
        """How many of these it does not wait for."""
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


class Waits:
    """The waiters of one run, and what each of them waits for.

    A queued rollout calls one waiter for work, the one that has waited longest; a waiter that leaves without having
    looked hands its call on. An ended rollout calls those who now have enough of what they wait for.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._work: OrderedDict[Ticket, None] = OrderedDict()
        self._results: dict[str, dict[Ticket, None]] = {}
        self._watchdogs: dict[Ticket, float] = {}
        self._closed = False

    def note(self, change: Change, *, forget: Callable[[], Callable[[], None] | None]) -> None:
        """Wake the waiters for this change. Returns at once; any thread may call it.

        Args:
            change: What has changed.
            forget: Refers to what forgets whether the run has ended: another process may have ended it.
        """
        if not change.rollout_id and (forget_end := forget()) is not None:
            forget_end()
        if not (self._work or self._results or self._watchdogs):
            return  # a new waiter looks by itself before it waits
        called: list[Ticket] = []
        if change.status in QUEUED:
            self._call_for_work()
        with self._lock:
            if change.status is None or change.status in ENDED:
                for ticket in self._results.get(change.rollout_id, ()):
                    ticket.pending.discard(change.rollout_id)
                    if len(ticket.pending) <= ticket.bearable or change.status is None:
                        called.append(ticket)
            if change.deadline is not None:
                called += [ticket for ticket, until in self._watchdogs.items() if change.deadline < until]
        for ticket in called:
            ticket.call()

    def for_work(self) -> Ticket:
        """Queue up for the next rollout that is queued. Look for work after this, before waiting."""
        ticket = Ticket()
        with self._entering():
            self._work[ticket] = None
        return ticket

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
        ticket = Ticket(rollout_ids, enough)
        with self._entering():
            for rollout_id in ticket.wanted:
                self._results.setdefault(rollout_id, {})[ticket] = None
        return ticket

    def narrow(self, ticket: Ticket, rollout_ids: Collection[str], needed: int) -> None:
        """Wait only for so many of these of the ticket's rollouts: the others were found to have ended, or missing."""
        with self._lock:
            ticket.pending.intersection_update(rollout_ids)
            ticket.bearable = len(rollout_ids) - needed
            called = len(ticket.pending) <= ticket.bearable
        if called:
            ticket.call()

    def leave_results(self, ticket: Ticket) -> None:
        """Stop waiting for results."""
        with self._lock:
            for rollout_id in ticket.wanted:
                waiting = self._results[rollout_id]
                del waiting[ticket]
                if not waiting:
                    del self._results[rollout_id]

    def for_deadline(self) -> Ticket:
        """Wait until a deadline appears at all; `expect` narrows it."""
        ticket = Ticket()
        with self._entering():
            self._watchdogs[ticket] = float("inf")
        return ticket

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
            tickets = {*self._work, *self._watchdogs, *chain.from_iterable(self._results.values())}
            self._work.clear()
        for ticket in tickets:
            ticket.call()

    def close(self) -> None:
        """Make everybody who waits, now or later, raise `StoreClosed`."""
        with self._lock:
            self._closed = True
        self.call_everyone()

    @contextmanager
    def _entering(self) -> Iterator[None]:
        with self._lock:
            if self._closed:
                raise StoreClosed("the store is closed")
            yield
