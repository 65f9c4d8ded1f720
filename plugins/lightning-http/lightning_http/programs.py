"""Programs in process groups of their own, of which no process is left when they end, or when this process does."""

import asyncio
import os
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import psutil  # type: ignore[import-untyped]

GRACE_SECONDS = 0.5
"""How long a program that is stopped may take to end before it is killed. A runner waits a second for its agent."""

_KILLED_SECONDS = 0.3
_EOF_SECONDS = 1.0
"""How long to wait for the end of the output of a program that has ended: a daemon of it may hold the pipe for good."""

_SCRIPT = 'trap "" HUP INT QUIT TERM; read -r group || exit 0; read -r released || kill -s KILL -- "-$group"'
"""Reads the group, then waits for a second line. Where the pipe ends without one, no process is left to write it."""


class Guard:
    """A small shell that outlives this process for a moment.

    The system closes the pipe between the two when this process ends, even by SIGKILL, and the shell then kills the
    group. It cannot help where it is killed itself, or where a forked copy of this process holds the pipe open.

    Raises:
        OSError: When no process can be started.
    """

    def __init__(self) -> None:
        self._shell = subprocess.Popen(
            ["/bin/sh", "-c", _SCRIPT],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            cwd="/",
            env={},
            start_new_session=True,  # Ctrl-C is for this process, which then takes care of its programs
        )

    def protect(self, group: int) -> None:
        """Kill this group from now on, when this process ends.

        Raises:
            OSError: When the shell is gone.
        """
        assert self._shell.stdin is not None
        self._shell.stdin.write(b"%d\n" % group)

    def release(self) -> None:
        """End without killing anything.

        To be called before the group's leader is reaped: then its id may be another's.
        """
        assert self._shell.stdin is not None
        with suppress(BrokenPipeError):  # the shell was killed
            self._shell.stdin.write(b"\n")
        self._shell.stdin.close()
        self._shell.wait()


class Tail(asyncio.Protocol):
    """Reads a pipe to its end, and keeps the last bytes, so that a program never waits for a reader.

    Args:
        max_bytes: How many are kept.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._kept = bytearray()
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the pipe has ended: its other end is closed everywhere."""

    def data_received(self, data: bytes) -> None:
        """Take what came."""
        self._kept += data
        if len(self._kept) > 2 * self._max_bytes:
            del self._kept[: -self._max_bytes]

    def connection_lost(self, error: Exception | None) -> None:
        """Record the end."""
        if not self.ended.done():
            self.ended.set_result(None)

    def text(self) -> str:
        """Return what is kept; what is not UTF-8 is replaced."""
        return self._kept[-self._max_bytes :].decode("utf-8", "replace")


class Program:
    """A program, which runs during an `async with` block; after it, however it is left, the program has ended.

    What is promised: when the program ends, everything in its process group is killed. When it is stopped, so is what
    it started in other groups or sessions, as long as the parents of these still run. When this process dies, even by
    SIGKILL, its group is killed by a guard. What is not: a daemon, which has cut itself off from its parents and its
    group, goes on.

    A thread waits for its end. It then kills what is left of the group, so that also an event loop that is blocked, or
    has ended, leaves nothing behind.

    Args:
        command: The program and its arguments.
        environment: All of its variables.
        folder: Where it runs.
        stdin: The file that is its standard input.
        max_output_bytes: How much of the end of stdout, and of stderr, is kept.
        grace_seconds: How long it may take to end when it is stopped, before it is killed.
        killed_seconds: How long to wait for the end of what was killed.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        folder: str,
        stdin: Path,
        max_output_bytes: int,
        grace_seconds: float = GRACE_SECONDS,
        killed_seconds: float = _KILLED_SECONDS,
    ) -> None:
        self._command, self._environment, self._folder, self._stdin = command, environment, folder, stdin
        self._loop = asyncio.get_running_loop()
        self._grace_seconds, self._killed_seconds = grace_seconds, killed_seconds
        self.stdout, self.stderr = Tail(max_output_bytes), Tail(max_output_bytes)
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._lock = threading.Lock()
        self._is_reaped = False
        self._transports: list[asyncio.BaseTransport] = []

    async def __aenter__(self) -> Self:
        """Start it.

        Raises:
            OSError: When that cannot be done.
        """
        self._start()
        try:
            await self._read()
        except BaseException:
            await self._aclose()
            raise
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._aclose()

    def _start(self) -> None:
        self._guard = Guard()  # first: a program that starts before it is unguarded
        try:
            with self._stdin.open("rb") as given:
                self._process = subprocess.Popen(
                    self._command,
                    stdin=given,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    cwd=self._folder,
                    env=self._environment,
                    bufsize=0,
                    start_new_session=True,
                )
        except BaseException:
            self._guard.release()
            raise
        try:
            self._guard.protect(self._process.pid)
            threading.Thread(target=self._watch, name=f"program {self._process.pid}", daemon=True).start()
        except BaseException:
            self._process.kill()
            self._end()
            self._close_pipes()
            raise

    @property
    def exit_status(self) -> int | None:
        """How it ended; a signal is a negative number, and None means that it has not."""
        return self._process.returncode

    async def wait(self) -> int:
        """Return the exit status when it has ended and its output is read."""
        await asyncio.wait((self._ended,))
        await asyncio.wait((self.stdout.ended, self.stderr.ended), timeout=_EOF_SECONDS)
        assert self._process.returncode is not None
        return self._process.returncode

    async def stop(self) -> None:
        """Let it end, with its group and with what it started in groups of their own: SIGTERM, then SIGKILL."""
        if self._ended.done():
            return
        descendants = _descendants(self._process.pid)
        self._signal(signal.SIGTERM)
        try:
            await asyncio.wait((self._ended,), timeout=self._grace_seconds)
        finally:
            self._signal(signal.SIGKILL)
            for each in descendants:
                with suppress(psutil.Error):  # it has ended by now, or belongs to another user
                    each.kill()
        await asyncio.wait((self._ended,), timeout=self._killed_seconds)
        await asyncio.to_thread(psutil.wait_procs, descendants, self._killed_seconds)

    async def _read(self) -> None:
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        for pipe, tail in ((self._process.stdout, self.stdout), (self._process.stderr, self.stderr)):
            transport, _ = await self._loop.connect_read_pipe(lambda tail=tail: tail, pipe)  # type: ignore[misc]
            self._transports.append(transport)

    async def _aclose(self) -> None:
        try:
            await self.stop()
        finally:
            for transport in self._transports:
                transport.close()
            if len(self._transports) < 2:
                self._close_pipes()
        await asyncio.sleep(0)  # closed transports say so to their protocols

    def _close_pipes(self) -> None:
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()

    def _watch(self) -> None:
        _wait_for_end(self._process)
        self._end()
        with suppress(RuntimeError):  # the loop has ended, and with it what waited for this
            self._loop.call_soon_threadsafe(self._settle)

    def _end(self) -> None:
        """Reap the program, which has ended or is just being killed, when nothing of its group is left."""
        _signal_group(self._process.pid, signal.SIGKILL)
        self._guard.release()
        with self._lock:
            self._process.wait()  # from here on its id, which is the group's, may be another's
            self._is_reaped = True

    def _settle(self) -> None:
        if not self._ended.done():
            self._ended.set_result(None)

    def _signal(self, number: signal.Signals) -> None:
        with self._lock:
            if not self._is_reaped:
                _signal_group(self._process.pid, number)


def _wait_for_end(process: "subprocess.Popen[Any]") -> None:
    """Return when a process has ended, if the system allows before it is reaped: until then its id is its own."""
    if hasattr(os, "waitid"):
        with suppress(ChildProcessError):  # the parent of this process ignores the end of children
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    else:
        process.wait()


def _signal_group(group: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):  # it has ended, or belongs to another user
        os.killpg(group, number)


def _descendants(pid: int) -> list[psutil.Process]:
    try:
        processes: list[psutil.Process] = psutil.Process(pid).children(recursive=True)
    except psutil.Error:
        return []
    return processes
