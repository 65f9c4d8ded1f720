"""Between the event loop, where rollouts are enqueued and awaited, and the thread in which verl's trainer runs.

Also the end of a training before its last step, which keeps what it has learned.
"""

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


_EARLY = "the training is to end before its last step"


class Enough(Exception):
    """Nothing more can be learned or measured; what was learned is to be kept."""


class Ending:
    """Whether a training is to end as soon as it can. Belongs to the event loop, but for `is_asked`."""

    def __init__(self) -> None:
        self._asked = asyncio.Event()

    @property
    def is_asked(self) -> bool:
        """Whether it is to end. May be read in any thread."""
        return self._asked.is_set()

    def ask(self) -> None:
        """Let it end."""
        self._asked.set()

    async def unless(self, work: Coroutine[Any, Any, T]) -> T:
        """Do a piece of work, unless the training is to end, before it or in its middle.

        Raises:
            Enough: When it is to end, also where the work has failed by then.
            Exception: What the work raised.
        """
        if self._asked.is_set():
            work.close()
            raise Enough(_EARLY)
        task, asked = asyncio.ensure_future(work), asyncio.ensure_future(self._asked.wait())
        try:
            await asyncio.wait((task, asked), return_when=asyncio.FIRST_COMPLETED)
            if not task.done() or (self._asked.is_set() and task.exception() is not None):
                raise Enough(_EARLY)
            return task.result()
        finally:
            task.cancel()
            asked.cancel()
            await asyncio.wait((task, asked))
