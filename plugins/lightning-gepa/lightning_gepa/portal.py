"""A loop that blocks, in a thread, and the event loop that works for it."""

import asyncio
import concurrent.futures
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from lightning_core.concurrency import in_daemon_thread

T = TypeVar("T")


class Stopped(BaseException):
    """Unwinds the thread. Not an `Exception`: gepa logs those of a proposal, and goes on."""


class Portal:
    """Runs coroutines in the event loop for a function in a thread. Made by `run_in_thread`."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._is_closed = False
        self.has_stopped = False
        """Whether the thread unwinds."""
        self.failure: Exception | None = None
        """What a coroutine raised."""

    def call(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine in the event loop, and return its result. To be called in the thread.

        Raises:
            Stopped: When it raised, or the caller of `run_in_thread` is gone.
        """
        future = asyncio.run_coroutine_threadsafe(self._run(work), self._loop)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            self.has_stopped = True
            raise Stopped from None
        except Exception as exc:
            self.has_stopped, self.failure = True, exc
            raise Stopped from exc

    async def close(self) -> None:
        """Cancel what runs, and run nothing more."""
        self._is_closed = True
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        if self._is_closed:
            raise asyncio.CancelledError
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            return await work()
        finally:
            self._tasks.discard(task)


async def run_in_thread(function: Callable[[Portal], None], *, name: str) -> None:
    """Run a function in a thread until it returns. When this is cancelled, the thread ends at its next call.

    Args:
        function: Given the portal through which it calls coroutines of this event loop.
        name: The thread's.

    Raises:
        Exception: What the function raised, or a coroutine that it called.
    """
    portal = Portal()

    def run() -> None:
        try:
            function(portal)
        except Stopped:
            return

    thread = in_daemon_thread(run, name=name)
    try:
        await asyncio.shield(thread)
    finally:
        await portal.close()
        await asyncio.wait({thread})
    if portal.failure is not None:
        raise portal.failure
