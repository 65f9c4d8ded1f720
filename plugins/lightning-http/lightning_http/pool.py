"""Runner processes: kept going, replaced when they die, ended with the run; also with that of a store elsewhere."""

import asyncio
import base64
import json
import logging
import multiprocessing
import os
import secrets
import signal
import socket
import sys
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing import resource_tracker
from multiprocessing.context import BaseContext
from typing import Any, Literal

import lightning_http as http
from lightning_core.errors import (
    AccessDenied,
    ConfigError,
    ExecutionError,
    InvalidTransition,
    NotFound,
    RunEnded,
    StoreError,
    StoreUnavailable,
)
from lightning_core.execution.base import RunnerBundle
from lightning_core.model_proxy import KEY_VARIABLE
from lightning_core.store import LightningStore
from lightning_http import child
from lightning_http.child import OVER_SECONDS, Report
from lightning_http.logs import log_settings, show
from lightning_http.messages import RUNNER_KEY_VARIABLE
from lightning_http.sending import packed

logger = logging.getLogger(__name__)

KEY_VARIABLES = (KEY_VARIABLE, RUNNER_KEY_VARIABLE)
"""What runner processes do not keep in their environment: agents have no use for it."""

StartMethod = Literal["spawn", "forkserver"]

_IMPORTED_ONCE = (
    "lightning_core.trainer.runners",
    "lightning_core.tracer.otel",
    "lightning_http.child",
    "lightning_http.client",
)
"""What every runner process needs: to import it takes most of its start."""

_READ_BYTES = 65_536


def process_context(method: StartMethod | None = None) -> BaseContext:
    """Return how runner processes are started.

    Args:
        method: None for `forkserver` where the system has it, else `spawn`. The fork server imports what runners need
            once, and nothing of the program: a fork of threads, or of what they hold, is not safe.
    """
    if method is None:
        method = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
    context = multiprocessing.get_context(method)
    if method == "forkserver":
        context.set_forkserver_preload([*_IMPORTED_ONCE])  # no effect where the program has its server already
    return context


async def release(store: LightningStore, token: str, reason: str) -> None:
    """Report the attempts of workers that are gone as faults, so that they run again before their leases lapse.

    What goes wrong is logged: then the leases have to do.

    Args:
        store: Where they claimed.
        token: Is part of the ids of these workers, and of no others.
        reason: What happened to them.
    """
    try:
        for worker in await store.query_workers(worker_id_contains=token):
            if worker.current_rollout_id is not None and worker.current_attempt_id is not None:
                try:
                    await store.report_fault(worker.current_rollout_id, worker.current_attempt_id, reason)
                except (InvalidTransition, NotFound) as exc:  # it has ended, or was deleted
                    logger.info("lightning.attempt_not_released attempt_id=%s: %s", worker.current_attempt_id, exc)
    except StoreError as exc:
        logger.warning("lightning.rollouts_not_released workers=%s", token, exc_info=exc)


class PooledProcess(ABC):
    """A process with runners, here or on another machine, watched from the running event loop.

    Args:
        numbers: Of its workers.
    """

    report: Report | None = None
    """The last thing that it said."""

    def __init__(self, numbers: Sequence[int]) -> None:
        self.numbers = numbers
        self.token = secrets.token_hex(4)
        """Is part of the ids of its workers."""
        self.name = f"runners {numbers[0]}-{numbers[-1]}" if len(numbers) > 1 else f"runner {numbers[0]}"
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when it has ended."""

    @property
    def has_begun(self) -> bool:
        """Whether it came as far as to look for work."""
        return self.report is not None and self.report.kind != "broken"

    @property
    @abstractmethod
    def exit_code(self) -> int | None:
        """How it ended: 0 as it should, a signal as a negative number; None where that is not known."""

    @abstractmethod
    async def start(self) -> None:
        """Start it."""

    @abstractmethod
    def stop(self) -> None:
        """Ask it to give back what it works on, and to end."""

    @abstractmethod
    def kill(self) -> None:
        """Let the system end it, where it still runs."""

    @abstractmethod
    def close(self) -> None:
        """Kill it where it still runs, and wait for that."""

    @abstractmethod
    def describe_end(self) -> str:
        """Say how it ended, in one line."""


MakeProcess = Callable[[Sequence[int]], PooledProcess]
"""Makes a process, which is not started, for the workers with these numbers."""


def process_maker(runner: RunnerBundle, store: LightningStore, *, context: BaseContext) -> MakeProcess:
    """Return what makes processes of this machine.

    Raises:
        ExecutionError: When the runners' side or the store cannot be sent to a process.
    """
    return partial(RunnerProcess, context, [packed("the runners' side", runner), packed("the store", store)])


class RunnerProcess(PooledProcess, asyncio.Protocol):
    """A process of this machine with runners.

    Args:
        context: How processes are started.
        payload: The packed runners' side, and the packed store.
        numbers: Of its workers.
    """

    def __init__(self, context: BaseContext, payload: Sequence[bytes], numbers: Sequence[int]) -> None:
        super().__init__(numbers)
        self._context: Any = context
        self._payload = payload
        self._unread = b""
        self._has_failed_to_show = False

    @property
    def exit_code(self) -> int | None:
        code: int | None = self._process.exitcode
        return code

    async def start(self) -> None:
        # A fork server has the environment of the moment when it began.
        environment = {name: value for name, value in os.environ.items() if name not in KEY_VARIABLES}
        loop = asyncio.get_running_loop()
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._socket.setblocking(False)
            self._transport, _ = await loop.create_unix_connection(lambda: self, sock=self._socket)
            arguments = (theirs, self.token, self.numbers, environment, log_settings())
            self._process = self._context.Process(target=child.main, args=arguments, name=self.name)
            try:
                with _without_interrupts():
                    self._process.start()
            except BaseException:
                self._transport.abort()
                raise
        self._watched: list[int] = [self._process.sentinel, *child.pidfd(self._process.pid)]
        for end in self._watched:
            loop.add_reader(end, self._on_end)
        self._transport.writelines(base64.b64encode(each) + b"\n" for each in self._payload)

    def stop(self) -> None:
        if not self.has_begun:
            self.kill()
        elif not self._transport.is_closing():
            self._transport.write(b"!")

    def kill(self) -> None:
        if not self.ended.done():
            self._process.kill()

    def close(self) -> None:
        if not self.ended.done():
            self._process.kill()
            self._process.join()
            self._on_end()

    def describe_end(self) -> str:
        error = f" ({self.report.error})" if self.report is not None and self.report.error else ""
        code = self.exit_code
        how = f"exit code {code}"
        if code is not None and code < 0:
            how = f"signal {signal.Signals(-code).name if -code in set(signal.Signals) else -code}"
        return f"{self.name} (process {self._process.pid}) ended with {how}{error}"

    def data_received(self, data: bytes) -> None:
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            message = json.loads(line)
            if "report" in message:
                self.report = Report(**message["report"])
            else:
                self._show(message["record"])

    def connection_lost(self, exc: Exception | None) -> None:
        self._read_rest()  # a write that failed closes what has more to read

    def _show(self, record: Mapping[str, Any]) -> None:
        try:
            show(record)
        except Exception as exc:  # of a handler or a filter of the program; what the process says counts all the same
            if not self._has_failed_to_show:
                self._has_failed_to_show = True
                sys.stderr.write(f"lightning.record_not_shown process={self.name}; this is told once: {exc}\n")

    def _read_rest(self) -> None:
        with suppress(OSError):  # nothing more has arrived
            while data := self._socket.recv(_READ_BYTES):
                self.data_received(data)

    def _on_end(self) -> None:
        loop = self.ended.get_loop()
        for end in self._watched:
            loop.remove_reader(end)
        for pidfd in self._watched[1:]:
            os.close(pidfd)
        self._read_rest()  # not until its end: a process that it forked may keep that open
        self._transport.abort()
        self._process.join()
        self.ended.set_result(None)


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Let a process that is started in the block begin without Ctrl-C, which it takes care of by itself."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # it would let interrupts through at the end of its own start
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


KILL_SECONDS = 1.0
"""How long the system may take to end a process that it was told to kill."""

RELEASE_SECONDS = 0.5
"""How long the end may be held up by giving back what was worked on: where that takes longer, leases have to do."""


class RunnerPool:
    """A number of runner processes.

    Args:
        make: Makes a process; None for no processes.
        n_runners: How many processes.
        concurrency: How many runners in each of them.
        max_restarts: How many processes may be replaced.
        release: Gives back what the workers of a dead process worked on, by its token, and by how it ended.
    """

    def __init__(
        self,
        make: MakeProcess | None,
        *,
        n_runners: int,
        concurrency: int,
        max_restarts: int,
        release: Callable[[str, str], Awaitable[None]],
    ) -> None:
        n_runners = 0 if make is None else n_runners
        self._make = make
        self._slots = [range(first, first + concurrency) for first in range(0, n_runners * concurrency, concurrency)]
        self._max_restarts = max_restarts
        self._release = release
        self._running: set[PooledProcess] = set()
        self._deaths: list[str] = []
        self._is_stopping = False
        self._is_over = False
        self._is_store_lost = False
        self.tokens: set[str] = set()
        """Of all processes that there were."""

    async def run(self) -> None:
        """Start all processes, and return when all have come to an end by themselves.

        Raises:
            ExecutionError: When one cannot begin, or too many have died.
        """
        for numbers in self._slots:
            await self._start(numbers)
        while self._running:
            await asyncio.wait({each.ended for each in self._running}, return_when=asyncio.FIRST_COMPLETED)
            for process in [each for each in self._running if each.ended.done()]:
                if process not in self._running:
                    continue  # `stop` or `close` has dealt with it while the one before was replaced
                self._running.remove(process)
                if process.report is not None and process.report.kind == "over":
                    self._end_others()
                elif process.exit_code != 0:
                    await self._replace(process)

    async def stop(self, graceful_seconds: float, *, busy: Collection[str] | None = None) -> None:
        """End all processes: ask them, then kill them.

        Args:
            graceful_seconds: How long they may take to end once they are asked.
            busy: The workers that execute something; the others hear of the end from the store. None to ask all.
        """

        def ask(process: PooledProcess) -> None:
            if not process.has_begun or busy is None or any(process.token in worker_id for worker_id in busy):
                process.stop()

        self._is_stopping = True
        await self._end(ask, graceful_seconds)
        await self._end(lambda process: process.kill(), KILL_SECONDS)

    def close(self) -> None:
        """Kill what still runs."""
        self._is_stopping = True
        for process in self._running:
            process.close()
        self._running.clear()

    async def _end(self, end: Callable[[PooledProcess], None], seconds: float) -> None:
        running = list(self._running)
        if not running:
            return
        for process in running:
            end(process)
        await asyncio.wait({each.ended for each in running}, timeout=seconds)
        dead: list[PooledProcess] = []
        for process in [each for each in running if each.ended.done()]:
            self._running.discard(process)
            if process.exit_code != 0 and process.has_begun and not (self._is_over or self._is_store_lost):
                logger.info("lightning.runner_process_ended %s", process.describe_end())
                dead.append(process)
        try:
            async with asyncio.timeout(RELEASE_SECONDS):
                await asyncio.gather(*(self._release(each.token, each.describe_end()) for each in dead))
        except TimeoutError:
            logger.warning(
                "lightning.rollouts_not_released workers=%s: no answer within %g s; they run again when their leases "
                "have lapsed",
                ",".join(each.token for each in dead),
                RELEASE_SECONDS,
            )

    def _end_others(self) -> None:
        """The run has ended: those that have not heard of it might look for its store in vain."""
        if not self._is_over:
            self._is_over = self._is_stopping = True
            loop = asyncio.get_running_loop()
            for process in self._running:
                loop.call_later(OVER_SECONDS if process.has_begun else 0, process.stop)

    async def _replace(self, process: PooledProcess) -> None:
        how, report = process.describe_end(), process.report
        if report is not None and report.kind == "hopeless" and not self._is_stopping:
            self._is_store_lost = True  # for a release as well
            raise ExecutionError(how)
        if not self._is_over:
            await self._release(process.token, how)
        if self._is_stopping:
            return
        self._deaths.append(how)
        if report is not None and report.kind == "broken":
            raise ExecutionError(f"{how}\n{report.trace}")
        if report is None and (process.exit_code or 0) > 0:
            raise ExecutionError(
                f"{how} before it began; what it wrote to stderr says why. A program that starts processes does so "
                "below `if __name__ == '__main__':`, because each of them imports it"
            )
        if len(self._deaths) > self._max_restarts:
            raise ExecutionError(
                f"{len(self._deaths)} runner processes have died, and max_restarts is {self._max_restarts}: "
                f"{'; '.join(self._deaths[-5:])}"
            )
        trace = f"\n{report.trace}" if report is not None and report.trace else ""
        logger.warning("lightning.runner_process_replaced %s%s", how, trace)
        await self._start(process.numbers)

    async def _start(self, numbers: Sequence[int]) -> None:
        assert self._make is not None
        process = self._make(numbers)
        await process.start()
        self.tokens.add(process.token)
        if self._is_stopping:  # meanwhile
            process.close()
        else:
            self._running.add(process)


CONNECT_SECONDS = 5.0
"""How long to look for a store before giving up."""


async def join_run(
    runner: RunnerBundle,
    url: str,
    make: Callable[[RunnerBundle, LightningStore], MakeProcess],
    *,
    key: str | None = None,
    run_id: str | None = None,
    graceful_seconds: float = 2.0,
    on_joined: Callable[[str], None] = lambda run_id: None,
    **numbers: int,
) -> None:
    """Work for a run until it ends.

    Cancelling it gives back what is worked on, and ends the processes.

    Args:
        runner: The runners' side.
        url: Where the store is served.
        make: Returns what makes processes for the runners' side and the store.
        key: What to say to it; None for the variable `AGL_KEY`.
        run_id: The run; None for the one that is served there.
        graceful_seconds: How long they may take to end, when this is cancelled.
        on_joined: Is told the run, before the first process starts.
        numbers: `n_runners`, `concurrency` and `max_restarts`; see `RunnerPool`.

    Raises:
        RunEnded: When it had ended before anything was started here.
        ConfigError: When nothing is served there, or it wants another key.
        ExecutionError: When the processes cannot begin, or too many of them have died, or the store was lost.
    """
    try:
        async with http.LightningStoreClient(url, key=key, run_id=run_id, retry_seconds=CONNECT_SECONDS) as client:
            await client.dequeue_many_rollouts(limit=0)  # no work, but the word of a run that has ended
            run_id = client.run_id
    except RunEnded:
        raise
    except (StoreUnavailable, AccessDenied) as exc:
        raise ConfigError(f"{exc}{_advice(exc)}") from exc
    except StoreError as exc:
        raise ConfigError(str(exc)) from exc
    on_joined(run_id)
    async with http.LightningStoreClient(url, key=key, run_id=run_id) as store:
        pool = RunnerPool(make(runner, store), release=partial(release, store), **numbers)
        try:
            await pool.run()
        finally:
            try:
                await pool.stop(graceful_seconds)
            finally:
                pool.close()


def _advice(error: StoreError) -> str:
    if isinstance(error, AccessDenied):
        return "; give the run's runner key, with --key or AGL_KEY"
    return "; is the run still going on, and can its address be reached from here?"
