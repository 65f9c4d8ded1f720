"""An event loop in a thread of its own, for a client that belongs to one loop, called from any other."""

import asyncio
import os
import socket
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from lightning_core.concurrency import EventLoopThread, loop_factory
from lightning_core.errors import StoreClosed, StoreError

T = TypeVar("T")

Work = Callable[[], Coroutine[Any, Any, T]]

HURRY_SECONDS = 5.0
"""How long the end, and who is cancelled, waits for work that is under way."""
EXIT_SECONDS = 10.0
"""How long the end of the interpreter waits for a store that was not closed."""


class Portal:
    """Carries out work in an event loop of its own, for callers in any other. The thread starts with the first work.

    Args:
        what: What lives here, for errors.
        hurry: Called in the loop when the end begins; work that waits for something better gives up then.
        end: Called in the loop when all work is done.
    """

    def __init__(self, what: str, *, hurry: Callable[[], None], end: Work[None]) -> None:
        self._what = what
        self._hurry = hurry
        self._end = end
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._closed = False
        self._thread: EventLoopThread | None = None
        self._tasks: set[asyncio.Task[Any]] = set()

    async def call(self, work: Work[T]) -> T:
        """Return what the work returns.

        A caller that is cancelled meanwhile does not cancel the work, and waits a moment for its end: so nothing is
        still under way that has no owner.

        Raises:
            StoreClosed: After the close.
            StoreError: In a forked child.
        """
        with self._lock_of_this_process():
            self._check_open()
            if self._thread is None:
                self._thread = EventLoopThread("lightning-mongo", loop_factory=_new_loop, at_end=self._finish)
            answer = asyncio.wrap_future(self._thread.submit(self._track(work)))
        try:
            return await asyncio.shield(answer)
        except asyncio.CancelledError:
            if answer.cancelled():
                raise StoreClosed("the store was closed meanwhile") from None
            await asyncio.wait((answer,), timeout=HURRY_SECONDS)
            if answer.done() and not answer.cancelled():
                answer.exception()  # the caller will not look at it
            raise

    def check_open(self) -> None:
        """Return if there may be work.

        Raises:
            StoreClosed: After the close.
            StoreError: In a forked child.
        """
        with self._lock_of_this_process():
            self._check_open()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed(f"{self._what} is closed")

    async def aclose(self) -> None:
        """Finish what was asked for, and end the thread."""
        await asyncio.get_running_loop().run_in_executor(None, self.close)

    def close(self) -> None:
        """Do as `aclose` does, and block until then."""
        if self._pid != os.getpid():
            return
        with self._lock:
            self._closed = True
        if self._thread is not None:
            self._thread.stop()
            if not self._thread.is_here:  # as where a garbage collection has called this
                self._thread.join(EXIT_SECONDS)
                if self._thread.ended.done():
                    self._thread.ended.result()

    def _lock_of_this_process(self) -> threading.Lock:
        if self._pid != os.getpid():  # a forked child may have got the lock locked
            raise StoreError(
                f"{self._what} was opened by process {self._pid}, and this is its forked child {os.getpid()}; open "
                "another one here"
            )
        return self._lock

    # In the thread

    async def _track(self, work: Work[T]) -> T:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            return await work()
        finally:
            self._tasks.discard(task)

    async def _finish(self) -> None:
        self._hurry()
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=HURRY_SECONDS)
            for task in late:
                task.cancel()
        await self._end()


def _new_loop() -> asyncio.AbstractEventLoop:
    """Return a loop that closes a socket whose connecting is cancelled: pymongo leaves it to the garbage collector."""
    loop = (loop_factory() or asyncio.new_event_loop)()
    connect = loop.sock_connect

    async def sock_connect(sock: socket.socket, address: Any) -> None:
        try:
            await connect(sock, address)
        except asyncio.CancelledError:
            sock.close()
            raise

    setattr(loop, "sock_connect", sock_connect)  # noqa: B010  # a type checker does not take an assignment
    return loop
