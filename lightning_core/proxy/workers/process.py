"""One worker, as the process that started it sees it."""

import asyncio
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from lightning_core.proxy.owner import Owner
from lightning_core.proxy.workers.channel import Channel

_END_SECONDS = 2.0
"""How long a process that was told to end, and has closed its channel, may take to do so."""


class WorkerProcess:
    """Starts a worker, and knows what it works on.

    Args:
        listening: The socket that all workers answer on.
        answer: Answers what it asks.
        note: Takes what it tells.
    """

    def __init__(
        self,
        listening: socket.socket,
        answer: "Callable[[WorkerProcess, str, tuple[Any, ...]], Awaitable[Any]]",
        note: "Callable[[WorkerProcess, str, tuple[Any, ...]], None]",
    ) -> None:
        self._listening = listening
        self._answer = answer
        self._note = note
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: Channel | None = None
        self.open_attempts: set[Owner] = set()
        """Those with calls which the store does not have yet."""

    @property
    def pid(self) -> int | None:
        """Its process id; None before it is started."""
        return None if self._process is None else self._process.pid

    @property
    def channel(self) -> Channel:
        """What leads to it."""
        assert self._channel is not None
        return self._channel

    async def start(self) -> None:
        """Start the process, which does nothing yet."""
        ours, theirs = socket.socketpair()
        try:
            descriptors = (self._listening.fileno(), theirs.fileno())
            # asyncio's own way to start processes works in the main thread alone on some platforms.
            self._process = subprocess.Popen(  # noqa: ASYNC220
                [sys.executable, "-m", "lightning_core.proxy.workers.child", *map(str, descriptors)],
                pass_fds=descriptors,
                stdin=subprocess.DEVNULL,
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        try:
            self._channel = await Channel.over(
                ours,
                lambda name, arguments: self._answer(self, name, arguments),
                lambda name, arguments: self._note(self, name, arguments),
            )
        except BaseException:
            ours.close()
            raise

    async def end(self, seconds: float) -> int:
        """Close the channel, wait for the process's end and kill it when it does not come; return how it ended."""
        process = self._process
        assert process is not None
        if self._channel is not None:
            await self._channel.aclose()
        try:
            return await asyncio.to_thread(process.wait, seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            return await asyncio.to_thread(process.wait)

    async def buried(self) -> str:
        """Say how a process ended that has closed its channel."""
        code = await self.end(_END_SECONDS)
        return f"signal {-code}" if code < 0 else f"exit code {code}"

    async def killed(self) -> str:
        """Let the system end it, and say how it ended."""
        process = self._process
        if process is None:
            return "nothing"
        if self._channel is None or not self._channel.closed.done():
            process.kill()
        return await self.buried()
