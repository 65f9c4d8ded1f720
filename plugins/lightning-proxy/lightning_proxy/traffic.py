"""When a call may go on: the limit of concurrent calls with its queue, and the pause for new weights."""

import asyncio
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass

from lightning_core.store.clock import Clock
from lightning_proxy.refusals import Refused, proxy_stopped

_ABORT_SECONDS = 5.0
"""How long to wait for the end of calls that were cut off."""

_STOPS = "the proxy stops"
_entered: ContextVar[object] = ContextVar("the call that this task makes", default=None)


@dataclass(frozen=True, slots=True)
class Drained:
    """What became of the calls that were under way."""

    finished: int
    """They came to their end, or wait for another try."""
    aborted: int
    """They were cut off when the time was over. A backend that does not let go of one may still be at it."""


class Traffic:
    """Lets calls in.

    Args:
        clock: How long waits last.
        max_calls: How many may be under way at once.
        max_waiting: How many may wait for their turn; one more is refused at once.
        queue_seconds: How long one waits for its turn.
        pause_seconds: How long one waits for the end of a pause, unless who pauses says it.
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
        self._resting: dict[object, Callable[[str], None]] = {}
        self._queue: dict[asyncio.Future[None], None] = {}
        self._promised = 0
        self._waiting = 0
        self._resumed: asyncio.Future[None] | None = None
        self._idle: asyncio.Future[None] | None = None
        self._is_closed = False

    @property
    def in_flight(self) -> int:
        """How many calls are under way."""
        return len(self._aborts)

    @property
    def waiting(self) -> int:
        """How many calls wait: for their turn, for the end of a pause, or for another try."""
        return self._waiting + len(self._resting)

    @property
    def is_paused(self) -> bool:
        """Whether new calls wait."""
        return self._resumed is not None

    def pause(self, seconds: float | None = None) -> None:
        """Let no new call in. Twice is as once.

        Args:
            seconds: How long a call that comes from now on waits for the end; None for as long as usual.
        """
        self._pause_seconds = self._usual_pause_seconds if seconds is None else seconds
        if self._resumed is None:
            self._resumed = asyncio.get_running_loop().create_future()

    def resume(self) -> None:
        """Let calls in again."""
        resumed, self._resumed = self._resumed, None
        if resumed is not None and not resumed.done():
            resumed.set_result(None)
            self._let_next_in()

    def close(self) -> None:
        """Let nobody in any more, neither those who wait, for their turn or for another try. Calls under way go on."""
        self._is_closed = True
        for waiting in (self._resumed, *self._queue):
            if waiting is not None and not waiting.done():
                waiting.set_result(None)
        for abort in tuple(self._resting.values()):
            abort(_STOPS)

    async def drain(self, timeout: float | None) -> Drained:
        """Wait until no call is under way; cut off those that are when the time is over.

        What is cut off is given five seconds to end. Does not pause: whoever wants to change weights calls `pause`
        before.

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

    async def enter(self, call: object, abort: Callable[[str], None]) -> None:
        """Return when a call may begin.

        Args:
            call: Which one.
            abort: Cuts it off, with the reason.

        Raises:
            Refused: When it had to wait for too long, too many wait, or the proxy stops.
        """
        _entered.set(call)
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

    def rest(self) -> None:
        """Take note that a try of this task's call, which was let in, has failed: no backend is at it.

        Until `come_again` it is not under way, but keeps its place.
        """
        call = _entered.get()
        abort = self._aborts.pop(call, None)
        if abort is not None:
            self._resting[call] = abort
            self._tell_if_idle()
            if self._is_closed:
                abort(_STOPS)

    async def come_again(self) -> None:
        """Return when the call of this task, which rests, may be made again. In a pause it gives up its place.

        Raises:
            Refused: As of `enter`.
        """
        call = _entered.get()
        abort = self._resting.pop(call, None)
        if abort is None:
            return
        if self._resumed is None:
            self._aborts[call] = abort
        else:
            await self.enter(call, abort)

    def leave(self, call: object) -> None:
        """Take note that a call has ended. One that was not let in is ignored."""
        if self._aborts.pop(call, None) is None and self._resting.pop(call, None) is None:
            return
        self._let_next_in()
        self._tell_if_idle()

    def _tell_if_idle(self) -> None:
        if not self._aborts and self._idle is not None:
            self._idle.set_result(None)
            self._idle = None

    def _has_room(self) -> bool:
        return len(self._aborts) + len(self._resting) + self._promised < self._max_calls

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
            elif self._has_room() or await self._came_to_its_turn():
                return
        raise proxy_stopped()

    async def _came_to_its_turn(self) -> bool:
        """Wait for a place; False when a pause began meanwhile."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue[turn] = None
        try:
            await self._clock.wait(turn, self._queue_seconds)
        except BaseException:
            if turn.done():  # the place is not needed any more
                self._promised -= 1
                self._let_next_in()
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

    def _let_next_in(self) -> None:
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
