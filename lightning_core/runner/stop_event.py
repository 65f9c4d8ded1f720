"""Stop signals from outside, in the forms that there are."""

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Protocol

from lightning_core.runner.calls import in_daemon_thread

THREAD_WAIT_SECONDS = 0.2
"""How long a thread that waits for a stop signal may outlive the interest in it."""


class StopEvent(Protocol):
    """An `asyncio.Event`, a `threading.Event`, an event of `multiprocessing`, or anything like one of them."""

    def is_set(self) -> bool:
        """Whether to stop."""
        ...

    def wait(self) -> Any:
        """Wait until it is set: as a coroutine, or blocking, and then with a timeout as an optional argument."""
        ...


@asynccontextmanager
async def stop_of(event: StopEvent | None) -> AsyncIterator["asyncio.Future[Any] | None"]:
    """Give a future, during the block, that is done as soon as the event is set; None without an event.

    A blocking event is waited for in a daemon thread, which ends within 0.2 s after the block.
    """
    if event is None:
        yield None
        return
    if inspect.iscoroutinefunction(event.wait):
        stop: asyncio.Future[Any] = asyncio.ensure_future(event.wait())
        try:
            yield stop
        finally:
            stop.cancel()
            await asyncio.wait((stop,))
        return
    left = threading.Event()
    wait: Any = event.wait  # with a timeout, which asyncio's has not

    def watch() -> None:
        while not wait(THREAD_WAIT_SECONDS):
            if left.is_set():
                return

    stop = in_daemon_thread(watch, name="stop event")
    try:
        yield stop
    finally:
        left.set()
        stop.cancel()
