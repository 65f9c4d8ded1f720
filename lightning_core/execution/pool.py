"""Runner processes: kept going, replaced when they die, ended with the run."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from multiprocessing.context import BaseContext
from typing import Protocol

from lightning_core.errors import ExecutionError
from lightning_core.execution.child import OVER_SECONDS
from lightning_core.execution.process import RunnerProcess

logger = logging.getLogger(__name__)

KILL_SECONDS = 1.0
"""How long the system may take to end a process that it was told to kill."""

RELEASE_SECONDS = 0.5
"""How long the end may be held up by giving back what was worked on: where that takes longer, leases have to do."""


class Release(Protocol):
    """Gives back what the workers of a dead process worked on."""

    def __call__(self, token: str, reason: str) -> Awaitable[None]:
        """Give it back.

        Args:
            token: Is part of the ids of these workers.
            reason: How the process ended.
        """
        ...


class RunnerPool:
    """A number of runner processes.

    Args:
        context: How processes are started.
        payload: The packed runners' side, and the packed store.
        n_runners: How many processes.
        concurrency: How many runners in each of them.
        max_restarts: How many processes may be replaced.
        release: Is called when a process has died.
        secret_variables: Environment variables that they do not keep.
    """

    def __init__(
        self,
        context: BaseContext,
        payload: Sequence[bytes],
        *,
        n_runners: int,
        concurrency: int,
        max_restarts: int,
        release: Release,
        secret_variables: Sequence[str] = (),
    ) -> None:
        self._context = context
        self._payload = payload
        self._slots = [range(first, first + concurrency) for first in range(0, n_runners * concurrency, concurrency)]
        self._max_restarts = max_restarts
        self._release = release
        self._secret_variables = secret_variables
        self._running: set[RunnerProcess] = set()
        self._deaths: list[str] = []
        self._is_stopping = False
        self._is_over = False
        self._is_store_lost = False
        self.tokens: set[str] = set()
        """Of all processes that there were."""

    @property
    def processes(self) -> list[RunnerProcess]:
        """Those that have not ended, as far as is known."""
        return list(self._running)

    async def run(self) -> None:
        """Start all processes, and return when all have come to an end by themselves.

        Raises:
            ExecutionError: When one cannot begin, or too many have died.
        """
        for numbers in self._slots:
            self._start(numbers)
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

    async def stop(
        self,
        *,
        graceful_seconds: float,
        terminate_seconds: float,
        has_to_be_told: Callable[[str], bool] = lambda token: True,
    ) -> None:
        """End all processes: ask them, then terminate them, then kill them.

        Args:
            graceful_seconds: How long they may take to end once they are asked.
            terminate_seconds: How long after they are terminated.
            has_to_be_told: Whether a process with this token has to be asked; else it hears of the end from the store.
        """

        def ask(process: RunnerProcess) -> None:
            if not process.has_begun or has_to_be_told(process.token):
                process.stop()

        self._is_stopping = True
        for end, seconds in (
            (ask, graceful_seconds),
            (RunnerProcess.terminate, terminate_seconds),
            (RunnerProcess.kill, KILL_SECONDS),
        ):
            await self._end(end, seconds)

    def close(self) -> None:
        """Kill what still runs."""
        self._is_stopping = True
        for process in self._running:
            process.close()
        self._running.clear()

    async def _end(self, end: Callable[[RunnerProcess], None], seconds: float) -> None:
        running = list(self._running)
        if not running or (seconds <= 0 and end is not RunnerProcess.kill):
            return
        for process in running:
            end(process)
        await asyncio.wait({each.ended for each in running}, timeout=seconds)
        dead: list[RunnerProcess] = []
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

    async def _replace(self, process: RunnerProcess) -> None:
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
        self._start(process.numbers)

    def _start(self, numbers: Sequence[int]) -> None:
        process = RunnerProcess(self._context, self._payload, numbers, self._secret_variables)
        process.start()
        self.tokens.add(process.token)
        self._running.add(process)
