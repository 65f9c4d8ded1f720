"""The one thread that touches the database: it commits together what is asked for at the same time."""

import asyncio
import functools
import logging
import os
import queue
import threading
from collections import defaultdict
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar

from lightning_core.errors import StoreClosed, StoreError, StoreFull
from lightning_core.store.backend import Change, StoreBackend
from lightning_sqlite.database import Database, explained
from lightning_sqlite.session import Session

T = TypeVar("T")
P = ParamSpec("P")

logger = logging.getLogger(__name__)

MAX_TOGETHER = 256
"""How many operations one commit may hold."""
EXIT_SECONDS = 10.0
"""How long the end of the interpreter waits for a store that was not closed."""


class _Operation(NamedTuple):
    work: Callable[[], Any]
    loop: asyncio.AbstractEventLoop
    future: "asyncio.Future[Any]"


class _Answer(NamedTuple):
    operation: _Operation
    outcome: Any


class Writer:
    """Carries out operations in the order in which they were asked for, and answers after their commit.

    Operations that were waiting together are one transaction. When that fails, each of them gets a transaction of its
    own, so that none fails for another's reason.

    Args:
        database: The open file, which the thread owns from now on.
        announce: Called in the thread with what a commit changed, before those who asked for it are answered.
    """

    def __init__(self, database: Database, announce: Callable[[Sequence[Change]], None]) -> None:
        self.session = Session(database.connection)
        self._path = database.path
        self._announce = announce
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._closed = self._is_full = False
        self._broken_by: BaseException | None = None
        self._ended: Future[None] = Future()
        self._ended.set_running_or_notify_cancel()  # a waiter cannot cancel it
        self._operations: queue.SimpleQueue[_Operation | None] = queue.SimpleQueue()
        """None is the last one, after which the database is closed."""
        # Daemonic, so that a store that was not closed does not keep the interpreter from ending.
        self._thread = threading.Thread(target=self._run, args=(database,), name="lightning-sqlite", daemon=True)
        self._thread.start()

    def check_usable(self) -> None:
        """Check that this is the process that opened the database, and that it is open.

        Raises:
            StoreClosed: After the close.
            StoreError: In a forked child, or when the thread has died.
        """
        if self._broken_by is not None:
            raise self._broken()
        if self._closed:
            raise StoreClosed(f"the store in {self._path} is closed")
        self._check_process()

    def _check_process(self) -> None:
        if self._pid != os.getpid():
            raise StoreError(
                f"the store in {self._path} belongs to process {self._pid}, and this is its forked child "
                f"{os.getpid()}; reach it over that process's server"
            )

    async def do(self, work: Callable[[], T]) -> T:
        """Let the thread carry out the work, and return what it returns once that is committed.

        Cancelled, the work may be done all the same.

        Raises:
            StoreClosed: After the close.
            StoreFull: When the disk is full; nothing was written.
            StoreError: When the database refuses; nothing was written.
        """
        self._check_process()  # before the lock, which a forked child may have got locked
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        with self._lock:
            self.check_usable()
            self._operations.put(_Operation(work, loop, future))
        return await future

    async def aclose(self) -> None:
        """Finish what was asked for, write everything into the one file, and end the thread."""
        self._end()
        await asyncio.wrap_future(self._ended)
        self._thread.join()

    def close(self) -> None:
        """Do as `aclose` does, and block until then."""
        if self._pid != os.getpid():
            return
        self._end()
        if self._thread is not threading.current_thread():  # where a garbage collection may have called this
            self._thread.join(EXIT_SECONDS)

    def _end(self) -> None:
        self._check_process()
        with self._lock:
            if not self._closed:
                self._closed = True
                self._operations.put(None)

    # In the thread

    def _run(self, database: Database) -> None:
        # A forked child never closes the connection, which would harm its parent's: this frame, which the child has
        # but does not run, holds it.
        connection = database.connection
        batch: list[_Operation] = []
        error: Exception | None = None
        open_for_more = True
        try:
            while open_for_more:
                open_for_more = self._take_operations(batch)
                if batch:
                    self._carry_out(batch)
            error = self._close(database)
        except BaseException as exc:  # a bug, or no memory: no caller may wait for a thread that is gone
            logger.critical("lightning.store_broken path=%s", self._path, exc_info=exc)
            self._break(exc, batch, database)
        finally:
            if error is None:
                self._ended.set_result(None)
            else:
                self._ended.set_exception(error)
            del connection

    def _close(self, database: Database) -> Exception | None:
        try:
            database.close()
        except Exception as exc:
            logger.warning("lightning.store_not_closed path=%s", self._path, exc_info=exc)
            return explained(exc, self._path)
        return None

    def _break(self, error: BaseException, batch: Sequence[_Operation], database: Database) -> None:
        left = [*batch]
        with self._lock:  # from here on nothing is asked for any more
            self._broken_by, self._closed = error, True
            with suppress(queue.Empty):
                while True:
                    left += filter(None, [self._operations.get_nowait()])
        self._close(database)
        # To those of them who have been answered this comes too late, and does nothing.
        self._answer([_Answer(operation, self._broken()) for operation in left])

    def _broken(self) -> StoreError:
        return StoreError(f"the store in {self._path} has broken: {self._broken_by!r}; open it again")

    def _take_operations(self, batch: list[_Operation]) -> bool:
        """Take what waits into an empty batch, and return whether there may be more."""
        batch.clear()
        operation = self._operations.get()
        while operation is not None:
            batch.append(operation)
            if len(batch) == MAX_TOGETHER:
                return True
            try:
                operation = self._operations.get_nowait()
            except queue.Empty:
                return True
        return False

    def _carry_out(self, batch: Sequence[_Operation]) -> None:
        try:
            outcomes, changes = self.session.transact([operation.work for operation in batch])
        except Exception as exc:
            if len(batch) > 1:
                for operation in batch:
                    self._carry_out([operation])
                return
            outcomes, changes = [exc], []
        outcomes = [explained(each, self._path) if isinstance(each, Exception) else each for each in outcomes]
        full = next((each for each in outcomes if isinstance(each, StoreFull)), None)
        if full is not None and not self._is_full:  # the first one, until something is written again
            logger.error("lightning.store_full path=%s: %s", self._path, full)
        self._is_full = full is not None or (self._is_full and not changes)
        if changes:
            try:
                self._announce(changes)
            except Exception:
                logger.warning("lightning.change_not_announced path=%s", self._path, exc_info=True)
        self._answer([_Answer(operation, outcome) for operation, outcome in zip(batch, outcomes, strict=True)])

    def _answer(self, answers: Sequence[_Answer]) -> None:
        by_loop: defaultdict[asyncio.AbstractEventLoop, list[_Answer]] = defaultdict(list)
        for answer in answers:
            by_loop[answer.operation.loop].append(answer)
        for loop, batch in by_loop.items():
            try:
                loop.call_soon_threadsafe(_complete, batch)
            except RuntimeError:
                if not loop.is_closed():
                    raise
                # The caller went away with the loop.


class SqlitePart(StoreBackend):
    """A part of the backend: some of its operations, which `in_the_thread` marks.

    Args:
        writer: Carries them out.
    """

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._session = writer.session
        self._execute = writer.session.execute


Part = TypeVar("Part", bound=SqlitePart)


def in_the_thread(
    operation: Callable[Concatenate[Part, P], T],
) -> Callable[Concatenate[Part, P], Coroutine[Any, Any, T]]:
    """Let the writer's thread carry out an operation, which answers after the commit."""

    @functools.wraps(operation)
    async def call(self: Part, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._writer.do(functools.partial(operation, self, *args, **kwargs))

    return call


def _complete(answers: Sequence[_Answer]) -> None:
    for answer in answers:
        future = answer.operation.future
        if future.done():
            continue
        if isinstance(answer.outcome, Exception):
            future.set_exception(answer.outcome)
        else:
            future.set_result(answer.outcome)
