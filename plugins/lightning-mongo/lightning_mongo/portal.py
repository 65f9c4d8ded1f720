"""An event loop in a thread of its own, for a client that belongs to one loop, called from any other."""

import asyncio
import os
import socket
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from lightning_core.concurrency import loop_factory
from lightning_core.errors import StoreClosed, StoreError

T = TypeVar("T")

Work = Callable[[], Coroutine[Any, Any, T]]

HURRY_SECONDS = 5.0
"""How long the end, and who is cancelled, waits for work that is under way."""
EXIT_SECONDS = 10.0
"""How long the end of the interpreter waits for a store that nobody closed."""


class Home:
    """Carries out work in its own event loop, whoever asks. The thread starts with the first work.

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
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._to_stop: asyncio.Event | None = None
        self._tasks: set[asyncio.Task[Any]] = set()

    async def do(self, work: Work[T]) -> T:
        """Return what the work returns.

        Who is cancelled meanwhile does not cancel the work, and waits a moment for its end: so nothing is still under
        way of which nobody knows any more.

        Raises:
            StoreClosed: After the close.
            StoreError: In a forked child.
        """
        asking = asyncio.get_running_loop()
        answer: asyncio.Future[T] = asking.create_future()

        def begin() -> None:
            task = asyncio.get_running_loop().create_task(work())
            self._tasks.add(task)
            task.add_done_callback(lambda task: self._answer(task, asking, answer))

        with self._lock_of_this_process():
            self._check_open()
            self._started().call_soon_threadsafe(begin)
        try:
            return await asyncio.shield(answer)
        except asyncio.CancelledError:
            if not answer.done():
                await asyncio.wait((answer,), timeout=HURRY_SECONDS)
            if answer.done() and not answer.cancelled():
                answer.exception()  # nobody else will look at it
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
            first, self._closed = not self._closed, True
            if first and self._loop is not None and self._to_stop is not None:
                self._loop.call_soon_threadsafe(self._to_stop.set)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(EXIT_SECONDS)

    def _lock_of_this_process(self) -> threading.Lock:
        if self._pid != os.getpid():  # a forked child may have got the lock locked
            raise StoreError(
                f"{self._what} was opened by process {self._pid}, and this is its forked child {os.getpid()}; open "
                "another one here"
            )
        return self._lock

    def _started(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            begun = threading.Event()
            # Daemonic, so that a store that nobody closed does not keep the interpreter from ending.
            self._thread = threading.Thread(target=self._run, args=(begun,), name="lightning-mongo", daemon=True)
            self._thread.start()
            begun.wait()
            assert self._loop is not None
        return self._loop

    # In the thread

    def _run(self, begun: threading.Event) -> None:
        with asyncio.Runner(loop_factory=_new_loop) as runner:
            runner.run(self._stay(begun))

    async def _stay(self, begun: threading.Event) -> None:
        self._loop = asyncio.get_running_loop()
        self._to_stop = asyncio.Event()
        begun.set()
        await self._to_stop.wait()
        self._hurry()
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=HURRY_SECONDS)
            for task in late:
                task.cancel()
        await self._end()

    def _answer(self, task: asyncio.Task[T], asking: asyncio.AbstractEventLoop, answer: "asyncio.Future[T]") -> None:
        self._tasks.discard(task)
        try:
            asking.call_soon_threadsafe(_complete, answer, task)
        except RuntimeError:
            if not asking.is_closed():
                raise
            # Whoever asked went away with the loop.
            if not task.cancelled():
                task.exception()


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


def _complete(answer: "asyncio.Future[T]", task: asyncio.Task[T]) -> None:
    error = StoreClosed("the store was closed meanwhile") if task.cancelled() else task.exception()
    if answer.done():
        return
    if error is not None:
        answer.set_exception(error)
    else:
        answer.set_result(task.result())
