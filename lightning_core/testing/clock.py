"""A clock that a test moves."""

import asyncio
import heapq
from itertools import count
from typing import Any

_SETTLING_ROUNDS = 40
"""Turns of the event loop after which whatever was woken has come to rest, unless it does real I/O."""


class FakeClock:
    """A clock that stands still until a test moves it; it never really waits.

    It belongs to one event loop: `now` may be called from anywhere, the rest only there.

    Args:
        start: The time that it begins with, in seconds since the epoch.
    """

    def __init__(self, start: float = 1_000_000.0) -> None:
        self._now = start
        self._set_by = 0.0
        self._order = count()
        self._alarms: list[tuple[float, int, asyncio.Future[None]]] = []
        self._watchers: list[tuple[int, asyncio.Future[None]]] = []

    def now(self) -> float:
        """Return the time, in seconds since the epoch."""
        return self._now + self._set_by

    def monotonic(self) -> float:
        """Return seconds since some moment, which `set_by` does not change."""
        return self._now

    def set_by(self, seconds: float) -> None:
        """Set the time forward, or back, as somebody sets a machine's clock: no time passes."""
        self._set_by += seconds

    async def wait(self, future: "asyncio.Future[Any]", seconds: float | None) -> bool:
        """Wait until the future is done, at most so many seconds of this clock (None: without limit).

        The future is never cancelled.

        Returns:
            Whether the future is done.
        """
        if seconds is None:
            await asyncio.wait((future,))
            return True
        alarm = asyncio.get_running_loop().create_future()
        if seconds <= 0:
            alarm.set_result(None)
        else:
            heapq.heappush(self._alarms, (self._now + seconds, next(self._order), alarm))
            self._tell_watchers()
        try:
            await asyncio.wait((future, alarm), return_when=asyncio.FIRST_COMPLETED)
        finally:
            alarm.cancel()
        return future.done()

    async def advance(self, seconds: float) -> None:
        """Move the time forward, through every alarm in its order, and let what it wakes come to rest each time.

        What is woken and does real I/O may go on after this returns: await its outcome.
        """
        target = self._now + seconds
        await self._settle()
        while self._alarms and self._alarms[0][0] <= target:
            at, _, alarm = heapq.heappop(self._alarms)
            if not alarm.done():
                self._now = at
                alarm.set_result(None)
                await self._settle()
        self._now = target
        await self._settle()

    def pass_unseen(self, seconds: float) -> None:
        """Move the time forward before anything has heard of it; alarms ring with the next `advance`."""
        self._now += seconds

    async def stand_still(self, seconds: float) -> None:
        """Move the time forward as for a process that was stopped: its alarms ring late, all of them, at the end."""
        await self._settle()
        self._now += seconds
        while self._alarms and self._alarms[0][0] <= self._now:
            alarm = heapq.heappop(self._alarms)[2]
            if not alarm.done():
                alarm.set_result(None)
        await self._settle()

    async def until_waiting(self, waits: int = 1) -> None:
        """Return as soon as so many waits with a limit are under way, so that `advance` can end them."""
        if self._under_way() < waits:
            watcher = asyncio.get_running_loop().create_future()
            self._watchers.append((waits, watcher))
            await watcher

    def _under_way(self) -> int:
        return sum(not alarm.done() for _, _, alarm in self._alarms)

    def _tell_watchers(self) -> None:
        for waits, watcher in self._watchers:
            if not watcher.done() and self._under_way() >= waits:
                watcher.set_result(None)
        self._watchers = [entry for entry in self._watchers if not entry[1].done()]

    async def _settle(self) -> None:
        for _ in range(_SETTLING_ROUNDS):
            await asyncio.sleep(0)
