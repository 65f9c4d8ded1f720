"""When a call may start: the limit of concurrent calls with its queue, and the pause for new weights."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from lightning_core.store.clock import Clock
from lightning_proxy.request import Refused, proxy_stopped

_ABORT_SECONDS = 5.0
"""How long to wait for calls to end after they were cut off."""

_STOPS = "the proxy stops"


@dataclass(frozen=True, slots=True)
class Drained:
    """How the calls ended that were in flight when `drain` began."""

    finished: int
    """How many ended by themselves, or wait for another try."""
    aborted: int
    """How many were cut off at the timeout. A backend that ignores this may still work on one."""


class Limiter:
    """Limits how many calls are in flight, and holds all of them back during a pause.

    A call acquires before it is sent, is parked while it waits for another try, reacquires for that, and is released at
    its end.

    Args:
        clock: How long waits last.
        max_calls: How many may be in flight at once.
        max_waiting: How many may wait; one more is refused at once.
        queue_seconds: How long a call waits for its turn.
        pause_seconds: How long a call waits for the end of a pause, unless `pause` is given another time.
    """

    def __init__(
        self, clock: Clock, *, max_calls: int, max_waiting: int, queue_seconds: float, pause_seconds: float
    ) -> None:
        self._clock = clock
        self._max_calls = max_calls
        self._max_waiting = max_waiting
        self._queue_seconds = queue_seconds
        self._usual_pause_seconds = self._pause_seconds = pause_seconds
        self._aborts: dict[object, Callable[[str], None]] = {}
        self._parked: dict[object, Callable[[str], None]] = {}
        self._queue: dict[asyncio.Future[None], None] = {}
        self._promised = 0
        self._waiting = 0
        self._resumed: asyncio.Future[None] | None = None
        self._idle: asyncio.Future[None] | None = None
        self._is_closed = False

    @property
    def in_flight(self) -> int:
        """How many calls are in flight."""
        return len(self._aborts)

    @property
    def waiting(self) -> int:
        """How many calls wait for their turn, for the end of a pause, or for another try."""
        return self._waiting + len(self._parked)

    @property
    def is_paused(self) -> bool:
        """Whether new calls wait."""
        return self._resumed is not None

    def pause(self, seconds: float | None = None) -> None:
        """Let no new call start. Idempotent.

        Args:
            seconds: How long a call that comes from now on waits for `resume`; None for `pause_seconds`.
        """
        self._pause_seconds = self._usual_pause_seconds if seconds is None else seconds
        if self._resumed is None:
            self._resumed = asyncio.get_running_loop().create_future()

    def resume(self) -> None:
        """Let calls start again."""
        resumed, self._resumed = self._resumed, None
        if resumed is not None and not resumed.done():
            resumed.set_result(None)
            self._start_next()

    def close(self) -> None:
        """Refuse new calls, and those that wait, for their turn or for another try. Calls in flight go on."""
        self._is_closed = True
        for waiting in (self._resumed, *self._queue):
            if waiting is not None and not waiting.done():
                waiting.set_result(None)
        for abort in tuple(self._parked.values()):
            abort(_STOPS)

    async def drain(self, timeout: float | None) -> Drained:
        """Wait until no call is in flight; cut off those that still are at the timeout.

        Calls that are cut off get five seconds to end. It does not pause: call `pause` first to change weights.

        Args:
            timeout: Seconds; None for no limit.
        """
        before = len(self._aborts)
        aborted = 0
        if self._aborts and not await self._clock.wait(self._until_idle(), timeout):
            aborted = len(self._aborts)
            for abort in tuple(self._aborts.values()):
                abort("the proxy is paused for new weights, and the call took too long to end")
            await self._clock.wait(self._until_idle(), _ABORT_SECONDS)
        return Drained(finished=max(0, before - aborted), aborted=aborted)

    async def acquire(self, call: object, abort: Callable[[str], None]) -> None:
        """Return when a call may start.

        Args:
            call: The call.
            abort: Cuts it off, with the reason.

        Raises:
            Refused: When it waited for too long, too many wait, or the proxy stops.
        """
        if self._resumed is None and self._has_room() and not self._queue and not self._is_closed:
            self._aborts[call] = abort
            return
        if self._waiting >= self._max_waiting:
            raise Refused(
                503,
                "proxy_full",
                f"{self._max_calls} calls are under way and {self._waiting} wait; try again in a moment",
                retry_after=1.0,
            )
        self._waiting += 1
        try:
            await self._wait()
        finally:
            self._waiting -= 1
        self._aborts[call] = abort

    def park(self, call: object) -> None:
        """Take a call out of flight whose try has failed: no backend works on it. It keeps its place.

        Ignores a call that has not acquired.
        """
        abort = self._aborts.pop(call, None)
        if abort is not None:
            self._parked[call] = abort
            self._notify_if_idle()
            if self._is_closed:
                abort(_STOPS)

    async def reacquire(self, call: object) -> None:
        """Return when a parked call may be sent again. In a pause it gives up its place.

        Raises:
            Refused: As of `acquire`.
        """
        abort = self._parked.pop(call, None)
        if abort is None:
            return
        if self._resumed is None:
            self._aborts[call] = abort
        else:
            await self.acquire(call, abort)

    def release(self, call: object) -> None:
        """Record the end of a call. Ignores one that has not acquired."""
        if self._aborts.pop(call, None) is None and self._parked.pop(call, None) is None:
            return
        self._start_next()
        self._notify_if_idle()

    def _notify_if_idle(self) -> None:
        if not self._aborts and self._idle is not None:
            self._idle.set_result(None)
            self._idle = None

    def _has_room(self) -> bool:
        return len(self._aborts) + len(self._parked) + self._promised < self._max_calls

    async def _wait(self) -> None:
        while not self._is_closed:
            if (resumed := self._resumed) is not None:
                seconds = self._pause_seconds
                if not await self._clock.wait(resumed, seconds):
                    raise Refused(
                        503,
                        "proxy_paused",
                        f"the proxy is paused for new weights, for more than {seconds:g} s by now; "
                        "try again in a moment",
                        retry_after=1.0,
                    )
            elif self._has_room() or await self._wait_for_turn():
                return
        raise proxy_stopped()

    async def _wait_for_turn(self) -> bool:
        """Wait for a place; False when a pause began meanwhile."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue[turn] = None
        try:
            await self._clock.wait(turn, self._queue_seconds)
        except BaseException:
            if turn.done():  # the place is not needed any more
                self._promised -= 1
                self._start_next()
            raise
        finally:
            self._queue.pop(turn, None)
        if not turn.done():
            raise Refused(
                503,
                "proxy_busy",
                f"{self._max_calls} calls are under way, and none ended within {self._queue_seconds:g} s; try again",
                retry_after=1.0,
            )
        if self._is_closed:
            return False
        self._promised -= 1
        return self._resumed is None

    def _start_next(self) -> None:
        while self._resumed is None and self._queue and self._has_room() and not self._is_closed:
            turn = next(iter(self._queue))
            del self._queue[turn]
            self._promised += 1
            turn.set_result(None)

    def _until_idle(self) -> "asyncio.Future[None]":
        if not self._aborts:
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            done.set_result(None)
            return done
        if self._idle is None:
            self._idle = asyncio.get_running_loop().create_future()
        return self._idle
