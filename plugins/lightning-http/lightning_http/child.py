"""What happens in a runner process."""

import asyncio
import base64
import gc
import multiprocessing
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from multiprocessing.connection import wait
from typing import Any, Literal

from lightning_core.concurrency import loop_factory
from lightning_core.errors import AccessDenied, NeedsLegacy, RunEnded, StoreUnavailable
from lightning_core.execution.base import RunnerBundle
from lightning_core.runner.base import worker_prefix
from lightning_core.store import LightningStore
from lightning_http.logs import ParentHandler, carry_logs
from lightning_http.sending import unpacked

END_SECONDS = 2.0
"""How long runners that are cancelled may take to end: agents to clean up, and rollouts to be given back."""

OVER_SECONDS = 2.0
"""How long runners may go on with what they do once another one has heard that the run has ended."""

ORPHAN_SECONDS = 1.0
"""How long a process may go on once the one that started it has died."""

ORPHANED = 3
"""The exit status then."""

Ending = Literal["over", "broken", "hopeless", "failed"]
"""`over`: the run has ended. `broken`: it could not begin, and no other one could. `hopeless`: it has failed, and so
will others."""


@dataclass(frozen=True, slots=True)
class Report:
    """What a runner process says of itself: that it is ready, or why it ends."""

    kind: Literal["ready"] | Ending
    error: str = ""
    """In one line."""
    trace: str = ""


class Parent(ParentHandler):
    """The process that started this one. When it dies, this process leaves.

    Args:
        end: Leads to it. It sends what runs here, and later perhaps a byte: it is time to stop.
    """

    def __init__(self, end: socket.socket) -> None:
        super().__init__(end)
        end.setblocking(True)  # whatever default modules have set
        with end.makefile("rb") as lines:
            self.payload = [base64.b64decode(lines.readline()) for _ in range(2)]
        self._stop: Callable[[], object] | None = None
        self._ended = threading.Event()
        threading.Thread(target=self._watch, name="parent", daemon=True).start()

    def report(self, report: Report) -> None:
        """Say how it goes here."""
        self.send("report", asdict(report))

    @contextmanager
    def working(self, stop: Callable[[], object]) -> Iterator[None]:
        """Let agents clean up during the block: `stop` is called, in another thread, when it is time to end."""
        self._stop = stop
        try:
            yield
        finally:
            self._ended.set()

    def _watch(self) -> None:
        parent = multiprocessing.parent_process()
        # It tells of the parent's death even where a process that it forked keeps our socket open.
        parents: list[Any] = [] if parent is None else pidfd(parent.pid)
        with suppress(OSError):
            while not any(each in parents for each in wait([self._end, *parents])) and self._end.recv(1):
                self._tell_to_stop()
        if self._tell_to_stop():
            self._ended.wait(ORPHAN_SECONDS)
        os._exit(ORPHANED)

    def _tell_to_stop(self) -> bool:
        """Return whether something runs that can be told."""
        if self._stop is not None:
            with suppress(RuntimeError):  # the loop has ended, and this process is about to
                self._stop()
        return self._stop is not None


def pidfd(pid: int | None) -> list[int]:
    """Return what tells of a process's end even where a process that it forked lives on, where the system has it."""
    try:
        return [] if pid is None else [os.pidfd_open(pid)]
    except (AttributeError, OSError):  # it has ended already, or the system has no such thing
        return []


def main(
    end: socket.socket, token: str, numbers: Sequence[int], environment: Mapping[str, str], settings: Mapping[str, Any]
) -> None:
    """Run runners in this process until they have ended, and then leave it, whatever still runs in it.

    Args:
        end: Leads to the process that started this one; see `Parent`.
        token: Is part of the ids of the workers here.
        numbers: Of the workers; they run at the same time.
        environment: The variables that agents are to see.
        settings: Which log records the process that started this one wants to show.
    """
    # Ctrl-C is for the one that started this one. It is ignored by a handler of our own, as that is not passed on to
    # the programs that agents start.
    signal.signal(signal.SIGINT, lambda number, frame: None)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    os.environ.clear()
    os.environ.update(environment)
    parent = Parent(end)
    carry_logs(settings, parent)
    status = 1
    try:
        runner, store = map(unpacked, parent.payload)
    except BaseException as exc:
        parent.report(report_error("broken", exc))
    else:
        parent.run_id = store.run_id
        status = _work(parent, runner, store, prefix=worker_ids(token), numbers=numbers)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # it has no reader any more, or it is closed
            stream.flush()
    os._exit(status)


def worker_ids(token: str) -> str:
    """Return what the ids of this process's workers begin with: no other process, anywhere, has the same."""
    return f"{socket.gethostname()}-{os.getpid()}-{token}"


async def run_here(
    runner: RunnerBundle,
    store: LightningStore,
    numbers: Sequence[int],
    stop: asyncio.Event,
    *,
    prefix: str,
    on_over: Callable[[], None] = lambda: None,
) -> None:
    """Run several runners in this event loop until all have ended, the run has, or it is time to stop.

    Args:
        runner: The runners' side.
        store: Where they look for work.
        numbers: Of the workers.
        stop: Ends them at once when it is set.
        prefix: What the ids of the workers begin with.
        on_over: Called when the store says that the run has ended. Those that still work then are soon stopped.

    Raises:
        Exception: What one of them raised; the others are ended.
    """
    worker_prefix.set(prefix)
    left = {asyncio.create_task(runner(store, number), name=f"runner {number}") for number in numbers}
    stopping = asyncio.create_task(stop.wait(), name="stop")
    is_over: asyncio.TimerHandle | None = None
    try:
        while left and not stopping.done():
            ended, _ = await asyncio.wait({*left, stopping}, return_when=asyncio.FIRST_COMPLETED)
            left -= ended
            for task in ended - {stopping}:
                try:
                    task.result()
                except RunEnded:
                    if is_over is None:
                        on_over()
                        is_over = asyncio.get_running_loop().call_later(OVER_SECONDS, stop.set)
    finally:
        if is_over is not None:
            is_over.cancel()
        for task in (*left, stopping):
            task.cancel()
        await asyncio.wait((*left, stopping), timeout=END_SECONDS)


def work_in_process(work: Coroutine[Any, Any, None]) -> None:
    """Run what a process of runners is there for, in an event loop that is never closed.

    Closing it would wait for the threads of agents that hang.
    """
    gc.freeze()  # a full collection need not look at all modules; hundreds of runners cause many
    asyncio.Runner(loop_factory=loop_factory()).run(work)


def _work(parent: Parent, runner: RunnerBundle, store: LightningStore, *, prefix: str, numbers: Sequence[int]) -> int:
    async def work() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        with parent.working(lambda: loop.call_soon_threadsafe(stop.set)):
            parent.report(Report("ready"))
            over = Report("over")
            try:
                await run_here(runner, store, numbers, stop, prefix=prefix, on_over=lambda: parent.report(over))
            finally:
                await store.aclose()

    try:
        work_in_process(work())
    except BaseException as exc:
        parent.report(report_failure(exc))
        return 1
    return 0


def report_failure(error: BaseException) -> Report:
    """Return what a process says whose runners have raised an error."""
    return report_error(
        "hopeless" if isinstance(error, StoreUnavailable | AccessDenied | NeedsLegacy) else "failed", error
    )


def report_error(kind: Ending, error: BaseException) -> Report:
    """Return what a process says that ends with an error."""
    line = " ".join(traceback.format_exception_only(error)[-1].split())
    return Report(kind, line, "".join(traceback.format_exception(error)).rstrip())
