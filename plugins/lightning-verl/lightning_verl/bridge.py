"""Between the event loop, where rollouts are enqueued and awaited, and the thread in which verl's trainer runs."""

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any, TypeVar

T = TypeVar("T")


class Stopped(Exception):
    """The run is over, so the trainer's thread has nothing more to do."""


class Bridge:
    """Lets the trainer's thread call the event loop, and wait for what happens there, until it is stopped.

    Args:
        loop: The event loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._end: Future[None] = Future()
        self._lock = threading.Lock()
        self._happened = threading.Event()

    # In the trainer's thread

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the event loop, and return what it returns.

        Raises:
            Stopped: When the run is over.
            Exception: What it raised, or what has stopped the run.
        """
        if self._end.done():
            coroutine.close()
            self._end.result()
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        either: list[Future[Any]] = [future, self._end]
        wait(either, return_when=FIRST_COMPLETED)
        if self._end.done() and not future.done():
            future.cancel()
            self._end.result()
        return future.result()

    def wait(self, seconds: float) -> None:
        """Wait until something has happened since the last wait, and no longer than that.

        Raises:
            Stopped: When the run is over.
            Exception: What has stopped the run.
        """
        self._happened.wait(seconds)
        self._happened.clear()
        if self._end.done():
            self._end.result()

    # In any thread

    def tell(self) -> None:
        """Say that something has happened."""
        self._happened.set()

    def stop(self, error: Exception | None = None) -> None:
        """End what the trainer's thread waits for, now and later. The first one says why.

        Args:
            error: What it raises there; None for `Stopped`.
        """
        with self._lock:
            if not self._end.done():
                self._end.set_exception(error or Stopped("the run is over"))
        self._happened.set()
