"""What happens in a runner process."""

import asyncio
import gc
import logging
import multiprocessing
import os
import pickle
import signal
import socket
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from queue import SimpleQueue
from typing import Any, Literal

from lightning_core.concurrency import loop_factory
from lightning_core.errors import AccessDenied, NeedsLegacy, RunEnded, StoreError, StoreUnavailable
from lightning_core.execution.base import RunnerBundle
from lightning_core.execution.pickling import unpacked
from lightning_core.runner.base import worker_prefix
from lightning_core.runs.result import FAILED_HOOKS
from lightning_core.store import UNSET, LightningStore
from lightning_core.store.base import Unset
from lightning_core.store.threaded import ForwardingStore
from lightning_http.logs import CarriedRecord, LogLevels, carry_logs

logger = logging.getLogger(__name__)


class ReportingStore(ForwardingStore):
    """The store of a runner process: heartbeats of one of its workers say what plugins have failed in it.

    They also say so before a worker asks for more work, so that nothing is left to say when there is none.

    Args:
        store: The store.
        failed: Returns what has failed so far, as `FAILED_HOOKS` has it.
    """

    def __init__(self, store: LightningStore, failed: Callable[[], Sequence[Mapping[str, Any]]]) -> None:
        self._store = store
        self._failed = failed
        self._told: Sequence[Mapping[str, Any]] = []
        self._teller: str | None = None
        """The worker that tells. One that sends no heartbeats has no lease, and is not to be given one."""
        self._stats: Mapping[str, Any] = {}

    def target(self) -> LightningStore:
        return self._store

    async def tell(self) -> None:
        """Tell what has not been told, if anything."""
        if self._teller is not None and self._failed() != self._told:
            # Of failed hooks only: what the worker executes is for its own heartbeats to say.
            await self.update_worker(self._teller, self._stats, attempts=())

    async def _call(self, name: str, arguments: dict[str, Any]) -> Any:
        if name in ("dequeue_rollout", "dequeue_many_rollouts"):
            await self._tell_before_work()
        worker_id, stats = arguments.get("worker_id"), arguments.get("heartbeat_stats", UNSET)
        if name != "update_worker" or isinstance(stats, Unset) or (self._teller or worker_id) != worker_id:
            return await super()._call(name, arguments)
        self._teller, self._stats, failed = worker_id, stats, self._failed()
        told = {**stats, FAILED_HOOKS: failed} if failed else stats
        worker = await super()._call(name, {**arguments, "heartbeat_stats": told})
        self._told = failed
        return worker

    async def _tell_before_work(self) -> None:
        try:
            await self.tell()
        except StoreError as exc:  # the next heartbeat says it again; if the store is gone, the claim says so
            logger.warning("lightning.failed_hooks_not_told worker_id=%s", self._teller, exc_info=exc)


END_SECONDS = 2.0
"""How long runners that are cancelled may take to end: agents to clean up, and rollouts to be given back."""

OVER_SECONDS = 2.0
"""How long runners may go on with what they do once another one has heard that the run has ended."""

ORPHAN_SECONDS = 1.0
"""How long a process may go on once the one that started it has died."""

ORPHANED = 3
"""The exit status then."""

TELL_SECONDS = 0.5
"""How long a process may delay its end to report failed plugins: the caller waits for that end."""


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


class Parent:
    """The process that started this one. When it dies, this process leaves.

    Args:
        connection: Leads to it. It sends notes, as a `Channel` does: `begin` with what runs here, then perhaps `stop`.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._unsaid: deque[bytes] = deque()
        self._speaking = threading.RLock()
        self._is_speaking = False
        self._payload: SimpleQueue[Sequence[bytes]] = SimpleQueue()
        self._stop: Callable[[], object] | None = None
        self._ended = threading.Event()
        threading.Thread(target=self._watch, name="parent", daemon=True).start()

    def payload(self) -> Sequence[bytes]:
        """Wait for what runs here."""
        return self._payload.get()

    def tell(self, said: Report | CarriedRecord) -> None:
        """Say something, in any thread; it is lost where the other process has died.

        Python may collect garbage at any moment, and run a `__del__` that logs: what it has to say in the midst of
        another message comes after that.
        """
        self._unsaid.append(pickle.dumps(("tell", 0, "said", (said,)), protocol=pickle.HIGHEST_PROTOCOL))
        with self._speaking:
            while self._unsaid and not self._is_speaking:
                self._is_speaking = True
                try:
                    with suppress(OSError):
                        self._connection.send_bytes(self._unsaid.popleft())
                finally:
                    self._is_speaking = False

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
        # It tells of the parent's death even where a process that it forked keeps our connection open.
        parents: list[Any] = [] if parent is None else pidfd(parent.pid)
        while not any(each in parents for each in wait([self._connection, *parents])):
            try:
                _, _, name, arguments = self._connection.recv()
            except (EOFError, OSError):
                break
            if name == "begin":
                self._payload.put(arguments)
            elif self._stop is not None:
                self._stop()
        if self._stop is not None:
            with suppress(RuntimeError):  # the loop has ended, and this process is about to
                self._stop()
            self._ended.wait(ORPHAN_SECONDS)
        os._exit(ORPHANED)


def pidfd(pid: int | None) -> list[int]:
    """Return what tells of a process's end even where a process that it forked lives on, where the system has it."""
    try:
        return [] if pid is None else [os.pidfd_open(pid)]
    except (AttributeError, OSError):  # it has ended already, or the system has no such thing
        return []


def main(
    connection: Connection, token: str, numbers: Sequence[int], environment: Mapping[str, str], levels: LogLevels
) -> None:
    """Run runners in this process until they have ended, and then leave it, whatever still runs in it.

    Args:
        connection: To the process that started this one; see `Parent`.
        token: Is part of the ids of the workers here.
        numbers: Of the workers; they run at the same time.
        environment: The variables that agents are to see.
        levels: Which log records the process that started this one wants to show.
    """
    # Ctrl-C is for the one that started this one. It is ignored by a handler of our own, as that is not passed on to
    # the programs that agents start.
    signal.signal(signal.SIGINT, lambda number, frame: None)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    os.environ.clear()
    os.environ.update(environment)
    parent = Parent(connection)
    logs = carry_logs(levels, parent.tell)
    status = 1
    try:
        runner, store = map(unpacked, parent.payload())
    except BaseException as exc:
        parent.tell(report_error("broken", exc))
    else:
        logs.run_id = store.run_id
        status = _work(parent, runner, store, prefix=worker_ids(token), numbers=numbers)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # it has no reader any more, or it is closed
            stream.flush()
    os._exit(status)


def worker_ids(token: str) -> str:
    """Return what the ids of this process's workers begin with: no other process, anywhere, has the same."""
    return f"{socket.gethostname()}-{os.getpid()}-{token}"


async def run_reporting(
    runner: RunnerBundle,
    store: LightningStore,
    numbers: Sequence[int],
    stop: asyncio.Event,
    *,
    prefix: str,
    on_over: Callable[[], None],
) -> None:
    """Run runners as `run_here` does, let the store know which hooks have failed here, and close it.

    Args:
        runner: See `run_here`.
        store: See `run_here`.
        numbers: See `run_here`.
        stop: See `run_here`.
        prefix: What the ids of the workers begin with.
        on_over: See `run_here`.

    Raises:
        Exception: What one of the runners raised.
    """
    worker_prefix.set(prefix)
    reporting = ReportingStore(store, lambda: getattr(runner, "failed_hooks", ()))
    try:
        await run_here(runner, reporting, numbers, stop, on_over=on_over)
    finally:
        with suppress(StoreError, TimeoutError):  # why it is out of reach is told by what ended this
            async with asyncio.timeout(TELL_SECONDS):
                await reporting.tell()
        await store.aclose()


async def run_here(
    runner: RunnerBundle,
    store: LightningStore,
    numbers: Sequence[int],
    stop: asyncio.Event,
    *,
    on_over: Callable[[], None] = lambda: None,
) -> None:
    """Run several runners in this event loop until all have ended, the run has, or it is time to stop.

    Args:
        runner: The runners' side.
        store: Where they look for work.
        numbers: Of the workers.
        stop: Ends them at once when it is set.
        on_over: Called when the store says that the run has ended. Those that still work then are soon stopped.

    Raises:
        Exception: What one of them raised; the others are ended.
    """
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
            parent.tell(Report("ready"))
            over = Report("over")
            await run_reporting(runner, store, numbers, stop, prefix=prefix, on_over=lambda: parent.tell(over))

    try:
        work_in_process(work())
    except BaseException as exc:
        parent.tell(report_failure(exc))
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
