"""Waits that end when their store is closed."""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from lightning_core.errors import StoreClosed

T = TypeVar("T")


class ClosableWaits:
    """The waits of one store, in whichever event loops."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ends: set[asyncio.Future[None]] = set()
        self._closed = False

    async def unless_closed(self, work: Coroutine[Any, Any, T], message: str) -> T:
        """Await something.

        Raises:
            StoreClosed: With this message, when `close` was called in the meantime.
        """
        end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        with self._lock:
            if self._closed:
                work.close()
                raise StoreClosed(message)
            self._ends.add(end)
        task: asyncio.Future[Any] = asyncio.ensure_future(work)
        try:
            await asyncio.wait((task, end), return_when=asyncio.FIRST_COMPLETED)
        finally:
            with self._lock:
                self._ends.discard(end)
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        if task.cancelled():
            raise StoreClosed(message)
        result: T = task.result()
        return result

    def close(self) -> None:
        """End all waits, from any thread."""
        with self._lock:
            self._closed = True
            ends, self._ends = self._ends, set()
        for end in ends:
            loop = end.get_loop()
            if not loop.is_closed():
                loop.call_soon_threadsafe(_finish, end)


def _finish(end: "asyncio.Future[None]") -> None:
    if not end.done():
        end.set_result(None)
