"""The event loop of a run that plain code starts, and the way out of it."""

import asyncio
import contextvars
import functools
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

MAX_THREADS = 256
"""How many calls run at the same time, unless somebody says otherwise; the others wait for their turn."""


class DaemonExecutor(ThreadPoolExecutor):
    """Runs calls in daemon threads, which end when there is nothing more to call.

    The interpreter waits at its exit for the threads of other executors: a program whose agent hangs in
    `asyncio.to_thread` could not end. A call sees the context variables of whoever submitted it.

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
            except BaseException as exc:  # as every executor does: whoever waits for it is told
                future.set_exception(exc)
            else:
                future.set_result(result)


logger = logging.getLogger(__name__)

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
