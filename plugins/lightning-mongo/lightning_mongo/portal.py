"""An event loop in a thread of its own, for a client that belongs to one loop, called from any other."""

import asyncio
import functools
import os
import socket
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar

from lightning_core.concurrency import EventLoopThread, loop_factory
from lightning_core.errors import StoreClosed, StoreError
from lightning_core.store.backend import StoreBackend
from lightning_core.store.waits import Listeners
from lightning_mongo.changes import Deadlines, News
from lightning_mongo.database import Database, Settings
from lightning_mongo.errors import explained

T = TypeVar("T")
P = ParamSpec("P")

Work = Callable[[], Coroutine[Any, Any, T]]

HURRY_SECONDS = 5.0
"""How long the end, and who is cancelled, waits for work that is under way."""
EXIT_SECONDS = 10.0
"""How long the end of the interpreter waits for a store that was not closed."""


class Portal:
    """Carries out work in an event loop of its own, for callers in any other.

    The thread starts, and the database is opened, with the first work.

    Args:
        database: Is open while work is carried out.
        news: Works for as long as it is open.
    """

    def __init__(self, database: Database, news: News) -> None:
        self._database = database
        self._news = news
        self._what = f"the store in {database.settings.address}"
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._closed = False
        self._thread: EventLoopThread | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._is_open = False
        self._opening: asyncio.Task[None] | None = None
        """The attempt that is under way, which all requests share."""

    async def call(self, work: Work[T]) -> T:
        """Return what the work returns.

        A caller that is cancelled meanwhile does not cancel the work, and waits a moment for its end: so nothing is
        still under way that has no owner.

        Raises:
            StoreClosed: After the close.
            StoreError: In a forked child.
            StoreUnavailable: When no server answers in time.
            UnusableDatabase: When it is of a newer version.
        """
        if self._pid != os.getpid():  # before the lock, which a forked child may have got locked
            raise StoreError(
                f"{self._what} was opened by process {self._pid}, and this is its forked child {os.getpid()}; open "
                "another one here"
            )
        with self._lock:
            if self._closed:
                raise StoreClosed(f"{self._what} is closed")
            if self._thread is None:
                self._thread = EventLoopThread("lightning-mongo", loop_factory=_new_loop, at_end=self._finish)
            answer = asyncio.wrap_future(self._thread.submit(self._carry_out(work)))
        try:
            return await asyncio.shield(answer)
        except asyncio.CancelledError:
            if answer.cancelled():
                raise StoreClosed("the store was closed meanwhile") from None
            answer.add_done_callback(lambda done: done.cancelled() or done.exception())  # which the caller will not do
            await asyncio.wait((answer,), timeout=HURRY_SECONDS)
            raise

    def close(self) -> None:
        """Finish what was asked for, and block until the thread has ended."""
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

    # In the thread

    async def _carry_out(self, work: Work[T]) -> T:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            if not self._is_open:
                if self._opening is None:
                    self._opening = asyncio.get_running_loop().create_task(self._open())
                    self._opening.add_done_callback(self._note_opened)
                await asyncio.shield(self._opening)
            return await work()
        except Exception as exc:
            error = explained(exc, self._database.settings.address)
            if error is exc:
                raise
            raise error from exc
        finally:
            self._tasks.discard(task)

    async def _open(self) -> None:
        try:
            await self._database.open()
            await self._news.start()
        except BaseException:
            await self._database.aclose()
            raise
        self._is_open = True

    def _note_opened(self, attempt: "asyncio.Task[None]") -> None:
        self._opening = None  # the next request makes another attempt, if this one failed
        if not attempt.cancelled():
            attempt.exception()  # the caller may be gone

    async def _finish(self) -> None:
        self._database.hurry()
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=HURRY_SECONDS)
            for task in late:
                task.cancel()
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait((self._opening,))
        await self._news.stop()
        await self._database.aclose()


class MongoPart(StoreBackend):
    """A part of the backend: some of its operations, which `in_the_loop` marks.

    Args:
        settings: How the database is used.
    """

    def __init__(self, settings: Settings) -> None:
        self._database = Database(settings)
        self._database.new_client(connect=False)  # not connected, so nothing to close: it only checks the options
        self._listeners = Listeners()
        self._deadlines = Deadlines()
        self._news = News(self._database, self._listeners, self._deadlines)
        self._portal = Portal(self._database, self._news)


Part = TypeVar("Part", bound=MongoPart)


def in_the_loop(
    operation: Callable[Concatenate[Part, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Part, P], Coroutine[Any, Any, T]]:
    """Let an operation run in the event loop of the open database, whichever loop it is called in."""

    @functools.wraps(operation)
    async def call(self: Part, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._portal.call(functools.partial(operation, self, *args, **kwargs))

    return call


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
