"""Threads, event loops of their own, and batches."""

import asyncio
import contextvars
import functools
import logging
import os
import threading
import traceback
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, Generic, ParamSpec, Self, TypeVar

from lightning_core.errors import AgentError, Fault, StoreUnavailable

P = ParamSpec("P")
T = TypeVar("T")
Request = TypeVar("Request")
Response = TypeVar("Response")

logger = logging.getLogger(__name__)


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return what makes the fastest event loop there is for this platform; None for asyncio's own."""
    try:
        import uvloop
    except ImportError:  # there is none for Windows
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


class Startable(ABC):
    """What is started and stopped, and is both by `async with`."""

    @abstractmethod
    async def start(self) -> None:
        """Start it."""

    @abstractmethod
    async def stop(self) -> None:
        """Stop it."""

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.stop()


def process_lives(pid: int) -> bool:
    """Whether there may be a process with this id on this machine; where asking would end it, there may be."""
    if os.name != "posix":
        return True
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # another user's
        pass
    return True


class EventLoopThread:
    """An event loop in a daemon thread of its own, to which other threads hand coroutines.

    Args:
        name: The thread's.
        loop_factory: Makes the event loop.
        at_end: Is awaited there when the thread is stopped. What runs after that is cancelled.
    """

    def __init__(
        self,
        name: str,
        *,
        loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None,
        at_end: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._runner = asyncio.Runner(loop_factory=loop_factory or asyncio.new_event_loop)
        self.loop = self._runner.get_loop()
        self.ended: Future[None] = Future()
        """Done when it has ended; has what `at_end` raised."""
        self._at_end = at_end
        self._stopped = asyncio.Event()
        # Daemonic, so that one that is never stopped does not keep the interpreter from ending.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def is_here(self) -> bool:
        """Whether this is called in that thread."""
        return threading.current_thread() is self._thread

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> "Future[T]":
        """Run a coroutine there, and return a future of its result.

        Raises:
            RuntimeError: When the thread has ended.
        """
        try:
            return asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        except RuntimeError:
            coroutine.close()
            raise

    def stop(self) -> None:
        """Tell the thread to end. Idempotent, and waits for nothing."""
        with suppress(RuntimeError):  # it has ended
            self.loop.call_soon_threadsafe(self._stopped.set)

    def join(self, timeout_seconds: float | None = None) -> None:
        """Wait until it has ended."""
        self._thread.join(timeout_seconds)

    def _run(self) -> None:
        try:
            with self._runner:
                self._runner.run(self._stay())
        except BaseException as exc:
            self.ended.set_exception(exc)
        else:
            self.ended.set_result(None)

    async def _stay(self) -> None:
        await self._stopped.wait()
        if self._at_end is not None:
            await self._at_end()


def in_daemon_thread(function: Callable[[], Any], *, name: str) -> "asyncio.Future[Any]":
    """Run a function in a new daemon thread, with the context variables of the caller.

    Cancelling the future abandons the thread: it goes on, and what it returns or raises is ignored. The process does
    not wait for it at its end.

    Returns:
        A future of this loop with its result.

    Raises:
        Fault: When the machine has no thread left.
    """
    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()  # what waits for it may be cancelled, and the thread goes on
    context = contextvars.copy_context()

    def run() -> None:
        try:
            result = context.run(function)
        except BaseException as exc:
            is_plain = isinstance(exc, Exception) and not isinstance(exc, StopIteration)  # which no future can hold
            future.set_exception(exc if is_plain else contained(exc, name))
        else:
            future.set_result(result)

    try:
        threading.Thread(target=run, name=name, daemon=True).start()
    except RuntimeError as exc:
        raise Fault(f"the {name} has no thread: {exc}") from exc
    return asyncio.wrap_future(future)


def contained(error: BaseException, name: str) -> AgentError:
    """Return an error that stops only the call that raised the given one."""
    contained = AgentError(f"the {name} raised {traceback.format_exception_only(error)[-1].strip()}")
    contained.__cause__ = error
    return contained


MAX_THREADS = 256
"""How many calls run at the same time, unless the caller says otherwise; the others wait for their turn."""


class DaemonExecutor(ThreadPoolExecutor):
    """Runs calls in daemon threads, which end when there is nothing more to call.

    The interpreter waits at its exit for the threads of other executors: a program whose agent hangs in
    `asyncio.to_thread` could not end. A call sees the context variables of its caller.

    Args:
        max_threads: How many calls run at the same time.
    """

    # An event loop takes only a ThreadPoolExecutor; none of its threads is ever started.

    def __init__(self, max_threads: int = MAX_THREADS) -> None:
        super().__init__(max_workers=max_threads)
        self._max_threads = max_threads
        self._lock = threading.Lock()
        self._calls: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._running = 0
        self._closed = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> "Future[T]":
        """Call `fn` soon; return a future of its result.

        Raises:
            RuntimeError: After `shutdown`.
        """
        future: Future[T] = Future()
        context = contextvars.copy_context()
        with self._lock:
            if self._closed:
                raise RuntimeError("this executor is shut down and takes no more calls")
            self._calls.append((future, functools.partial(context.run, functools.partial(fn, *args, **kwargs))))
            is_new = self._running < self._max_threads
            self._running += is_new
        if is_new:
            threading.Thread(target=self._work, name="to_thread", daemon=True).start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more calls, and drop those that have not begun. Waits for nothing, whatever `wait` says."""
        with self._lock:
            self._closed = True
            dropped, self._calls = self._calls, deque()
        for future, _ in dropped:
            future.cancel()

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._calls:
                    self._running -= 1
                    return
                future, call = self._calls.popleft()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                result = call()
            except BaseException as exc:  # as every executor does: its caller gets it
                future.set_exception(exc)
            else:
                future.set_result(result)


STOP_SECONDS = 0.2
"""How long tasks that are left over may take to end once they are cancelled."""


@contextmanager
def event_loop() -> Iterator[asyncio.Runner]:
    """Give a new event loop to a `with` block, and close it at the end, whatever still runs in it.

    Tasks that are left are cancelled. One that does not let itself be cancelled is logged and never runs again. What
    hangs in `asyncio.to_thread` goes on in its thread, which keeps the process from nothing.
    """
    runner = asyncio.Runner(loop_factory=_new_loop)
    loop = runner.get_loop()
    try:
        yield runner
    finally:
        # Not Runner.close(): it waits without a limit for tasks that refuse to end, and for threads.
        try:
            runner.run(_stop_what_is_left())
        finally:
            loop.close()


def _new_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    loop.set_default_executor(DaemonExecutor())
    return loop


async def _stop_what_is_left() -> None:
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await _wait_shortly(left)
    generators = asyncio.create_task(asyncio.get_running_loop().shutdown_asyncgens(), name="async generators")
    await _wait_shortly({generators})


async def _wait_shortly(tasks: "set[asyncio.Task[Any]]") -> None:
    if not tasks:
        return
    ended, stuck = await asyncio.wait(tasks, timeout=STOP_SECONDS)
    for task in ended:
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.warning("lightning.task_ended_badly task=%s", task.get_name(), exc_info=error)
    for task in stuck:
        logger.warning("lightning.task_abandoned task=%s; it does not let itself be cancelled", task.get_name())


class Batcher(Generic[Request, Response]):
    """Answers requests that come while another one is under way together, with one call.

    A request never joins a call that has begun before it came. Belongs to one event loop.

    Args:
        answer: Answers requests, in their order.
        max_size: How many go together at most.
    """

    def __init__(
        self, answer: Callable[[list[Request]], Awaitable[Sequence[Response]]], *, max_size: int = 500
    ) -> None:
        self._call = answer
        self._max_size = max_size
        self._waiting: deque[tuple[Request, asyncio.Future[Response]]] = deque()
        self._task: asyncio.Task[None] | None = None

    async def ask(self, request: Request) -> Response:
        """Return the answer to a request."""
        return await self.submit(request)

    async def ask_all(self, requests: Sequence[Request]) -> list[Response]:
        """Return the answers to several requests, which need not go together."""
        return list(await asyncio.gather(*map(self.submit, requests)))

    def submit(self, request: Request) -> "asyncio.Future[Response]":
        """Return a future of the answer to a request."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Response] = loop.create_future()
        self._waiting.append((request, future))
        if self._task is None:
            self._task = loop.create_task(self._work())
        return future

    async def cancel(self) -> None:
        """Cancel the call that is under way, and the requests that wait."""
        for _, future in self._waiting:
            future.cancel()
        self._waiting.clear()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))

    async def _work(self) -> None:
        try:
            while self._waiting:
                count = min(len(self._waiting), self._max_size)
                await self._answer([self._waiting.popleft() for _ in range(count)])
        finally:
            self._task = None

    async def _answer(self, batch: list[tuple[Request, "asyncio.Future[Response]"]]) -> None:
        try:
            answers = await self._call([request for request, _ in batch])
        except Exception as exc:
            if len(batch) > 1 and not isinstance(exc, StoreUnavailable):
                for each in batch:  # so that none fails for another's reason
                    await self._answer([each])
                return
            for _, future in batch:
                if not future.done():
                    future.set_exception(exc)
            return
        except BaseException:
            for _, future in batch:
                future.cancel()
            raise
        for (_, future), answer in zip(batch, answers, strict=True):
            if not future.done():
                future.set_result(answer)
