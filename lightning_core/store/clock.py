"""Where a store gets the time from, and how it waits: passed in, so that a test never sleeps."""

import asyncio
import time
from typing import Any, Protocol


class Clock(Protocol):
    """The time, and waiting."""

    def now(self) -> float:
        """Return the time, in seconds since the epoch: what records say."""
        ...

    def monotonic(self) -> float:
        """Return seconds since some moment, whatever the machine's time is set to: what durations are measured by."""
        ...

    async def wait(self, future: "asyncio.Future[Any]", seconds: float | None) -> bool:
        """Wait until the future is done, at most so many seconds (None: without limit).

        The future is never cancelled.

        Returns:
            Whether the future is done.
        """
        ...


class SystemClock:
    """The machine's clock and the event loop's timers."""

    now = staticmethod(time.time)
    monotonic = staticmethod(time.monotonic)

    async def wait(self, future: "asyncio.Future[Any]", seconds: float | None) -> bool:
        """Wait until the future is done, at most so many seconds (None: without limit)."""
        await asyncio.wait((future,), timeout=seconds)
        return future.done()
