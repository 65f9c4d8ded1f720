"""One runner process, as the process that started it sees it."""

import asyncio
import logging
import os
import pickle
import secrets
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from typing import Any

from lightning_core.execution import child
from lightning_core.execution.child import STOP
from lightning_core.execution.line import Report, Words
from lightning_core.logs.carried import CarriedRecord, LogLevels
from lightning_core.runner.calls import in_daemon_thread

logger = logging.getLogger(__name__)

WORDS_AT_ONCE = 100
"""How much that a process says is taken in before others have their turn: it may log a lot."""


class RunnerProcess:
    """Starts one process with runners, and watches it, in the running event loop.

    Args:
        context: How processes are started.
        payload: The packed runners' side, and the packed store.
        numbers: Of its workers.
        secret_variables: Environment variables that it does not keep.
    """

    def __init__(
        self,
        context: BaseContext,
        payload: Sequence[bytes],
        numbers: Sequence[int],
        secret_variables: Sequence[str] = (),
    ) -> None:
        self.token = secrets.token_hex(4)
        """Is part of the ids of its workers."""
        self.numbers = numbers
        self.report: Report | None = None
        """The last thing that it said."""
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = self._loop.create_future()
        """Done when it has ended."""
        self._payload = payload
        self._connection, theirs = context.Pipe()
        self._words = Words(self._connection)
        self._has_failed_to_show = False
        self._pidfds: list[int] = []
        process: Any = context
        self._process = process.Process(
            target=child.main,
            args=(theirs, self.token, numbers, secret_variables, LogLevels.here()),
            name=f"runners {numbers[0]}-{numbers[-1]}" if len(numbers) > 1 else f"runner {numbers[0]}",
        )
        self._theirs = theirs
        self._sent: asyncio.Future[Any] | None = None

    @property
    def name(self) -> str:
        """What it is called in messages."""
        return str(self._process.name)

    @property
    def pid(self) -> int | None:
        """Its process id."""
        pid: int | None = self._process.pid
        return pid

    @property
    def exit_code(self) -> int | None:
        """How it ended: an exit status, or a signal as a negative number."""
        code: int | None = self._process.exitcode
        return code

    @property
    def has_begun(self) -> bool:
        """Whether it came as far as to look for work."""
        return self.report is not None and self.report.kind != "broken"

    def start(self) -> None:
        """Start it."""
        try:
            with _without_interrupts():
                self._process.start()
        except BaseException:
            self._words.close()
            self._connection.close()
            raise
        finally:
            self._theirs.close()
        self._pidfds = _pidfds(self._process.pid)
        for end in (self._process.sentinel, *self._pidfds):
            self._loop.add_reader(end, self._on_end)
        self._loop.add_reader(self._words.fileno(), self._on_word)
        # It may be more than a pipe holds, and the process takes it when it has started.
        self._sent = in_daemon_thread(lambda: _send(self._connection, self._payload), name="runner's payload")

    def stop(self) -> None:
        """Ask it to give back what it works on, and to end."""
        if not self.has_begun:
            self.terminate()
        elif not self.ended.done():
            with suppress(OSError):  # it ends just now
                self._connection.send_bytes(STOP)

    def terminate(self) -> None:
        """Ask the system to end it."""
        if not self.ended.done():
            self._process.terminate()

    def kill(self) -> None:
        """Let the system end it."""
        if not self.ended.done():
            self._process.kill()

    def describe_end(self) -> str:
        """Say how it ended, in one line."""
        code = self.exit_code
        how = f"exit code {code}"
        if code is not None and code < 0:
            how = f"signal {signal.Signals(-code).name}" if -code in set(signal.Signals) else f"signal {-code}"
        said = f" ({self.report.error})" if self.report is not None and self.report.error else ""
        return f"{self.name} (process {self.pid}) ended with {how}{said}"

    def close(self) -> None:
        """Kill it where it still runs, and wait for that."""
        if self._process.pid is not None and not self.ended.done():
            self._process.kill()
            self._process.join()
            self._on_end()

    def _on_word(self) -> None:
        for _ in range(WORDS_AT_ONCE):
            if not self._hear():
                return

    def _hear(self) -> bool:
        """Take in what it said next; return whether there was anything."""
        try:
            word = self._words.next()
        except (EOFError, OSError):
            self._loop.remove_reader(self._words.fileno())
            return False
        if word is None:
            return False
        try:
            self._take(pickle.loads(word))
        except Exception as exc:  # of a handler or a filter of the program; what the process says counts all the same
            self._tell_of_failure(exc)
        return True

    def _take(self, said: Report | CarriedRecord) -> None:
        if isinstance(said, CarriedRecord):
            said.show()
        else:
            self.report = said

    def _tell_of_failure(self, error: Exception) -> None:
        """Say once, where no handler of the program is asked, that its records are not shown."""
        if not self._has_failed_to_show and logging.lastResort is not None:
            text = f"lightning.record_not_shown process={self.name}; this is told once: %s"
            info = (type(error), error, error.__traceback__)
            logging.lastResort.handle(logger.makeRecord(logger.name, logging.ERROR, __file__, 0, text, (error,), info))
        self._has_failed_to_show = True

    def _on_end(self) -> None:
        for end in (self._process.sentinel, *self._pidfds):
            self._loop.remove_reader(end)
        while self._pidfds:
            os.close(self._pidfds.pop())
        try:
            while self._hear():
                continue
        finally:
            self._loop.remove_reader(self._words.fileno())
            self._words.close()
            self._connection.close()
            self._process.join()
            if self._sent is not None and self._sent.done() and not self._sent.cancelled():
                self._sent.exception()  # nobody was there to take it
            elif self._sent is not None:
                self._sent.cancel()
            self.ended.set_result(None)


def _pidfds(pid: int) -> list[int]:
    """Return what tells of a process's end even where a process that it forked lives on, which keeps the rest open."""
    if not hasattr(os, "pidfd_open"):
        return []
    try:
        return [os.pidfd_open(pid)]
    except OSError:  # it has ended already, or the system has no such thing: the sentinel tells as well
        return []


def _send(connection: Connection, payload: Sequence[bytes]) -> None:
    with suppress(OSError):  # it has died; how is known from its end
        for part in payload:
            connection.send_bytes(part)


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
