"""Messages between this process and one that it has started: pickled, over a pair of sockets.

Both ends are this program, and no other has the sockets: so what goes over them is pickled. A message is framed as
`multiprocessing.connection.Connection` frames it, so an end without an event loop can be one of those.
"""

import asyncio
import pickle
import signal
import socket
import struct
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from itertools import count
from typing import Any, cast

from lightning_core.errors import LightningError

Answer = Callable[[str, tuple[Any, ...]], Awaitable[Any]]
Note = Callable[[str, tuple[Any, ...]], None]

_SHORT, _LONG = struct.Struct("!i"), struct.Struct("!Q")
_LONGEST_SHORT = 0x7FFFFFFF
_READ_BYTES = 65_536


class ChannelClosed(LightningError):
    """The other end is gone."""


class Channel(asyncio.Protocol):
    """One end, in an event loop.

    Args:
        note: Takes a note: its name and its arguments.
        answer: Answers a request, which is a name and its arguments; its exceptions reach the other end. None where
            the other end asks for nothing.
        errors: What may be raised at the other end, a subclass before its base; other errors are the last one there.
    """

    def __init__(
        self, note: Note, answer: Answer | None = None, errors: Sequence[type[LightningError]] = (LightningError,)
    ) -> None:
        self._note = note
        self._answer = answer
        self._errors = errors
        self._transport: asyncio.WriteTransport | None = None
        self._socket: socket.socket | None = None
        self._unread = bytearray()
        self._numbers = count(1)
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._answering: set[asyncio.Task[None]] = set()
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the other end is gone, or this one was closed."""

    async def open(self, end: socket.socket) -> None:
        """Use one end of a connected pair of sockets, and close it in the end."""
        try:
            end.setblocking(False)
            await asyncio.get_running_loop().create_unix_connection(lambda: self, sock=end)
        except BaseException:
            end.close()
            raise
        self._socket = end

    async def ask(self, name: str, *arguments: Any) -> Any:
        """Ask the other end for something, and return its answer.

        Raises:
            ChannelClosed: When it is gone.
            LightningError: What it raised.
        """
        if self._transport is None:
            raise ChannelClosed("the other process has ended")
        number = next(self._numbers)
        asked = self._asked[number] = asyncio.get_running_loop().create_future()
        self._write(("ask", number, name, arguments))
        try:
            return await asked
        finally:
            self._asked.pop(number, None)

    def tell(self, name: str, *arguments: Any) -> None:
        """Send a note to the other end; it is lost where that is gone."""
        self._write(("tell", 0, name, arguments))

    async def aclose(self) -> None:
        """Close this end, and with it the other one. What is still being answered here is cancelled."""
        if self._socket is None:  # never opened
            return
        if self._transport is not None:
            self._transport.close()
        await asyncio.wait((self.closed,))
        for task in self._answering:
            task.cancel()
        await asyncio.gather(*self._answering, return_exceptions=True)

    def abort(self) -> None:
        """Take in what has arrived, and close this end at once.

        For the end of a process whose forked children may keep the other end open.
        """
        if self._transport is not None:
            try:
                self._read_rest()
            finally:
                self._transport.abort()
                self._transport = None

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)

    def data_received(self, data: bytes) -> None:
        self._unread += data
        while (message := self._next_message()) is not None:
            self._receive(*pickle.loads(message))

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if exc is not None:  # of a write; what the other end has said before may still be there
            self._read_rest()
        for asked in self._asked.values():
            if not asked.done():
                asked.set_exception(ChannelClosed("the other process has ended"))
        self.closed.set_result(None)

    def _read_rest(self) -> None:
        with suppress(OSError):  # nothing more has arrived
            while self._socket is not None and (data := self._socket.recv(_READ_BYTES)):
                self.data_received(data)

    # Messages

    def _next_message(self) -> bytes | None:
        start = _SHORT.size
        if len(self._unread) < start:
            return None
        (length,) = _SHORT.unpack_from(self._unread)
        if length < 0:
            start += _LONG.size
            if len(self._unread) < start:
                return None
            (length,) = _LONG.unpack_from(self._unread, _SHORT.size)
        if len(self._unread) < start + length:
            return None
        message = bytes(self._unread[start : start + length])
        del self._unread[: start + length]
        return message

    def _receive(self, kind: str, number: int, what: Any, value: Any) -> None:
        if kind == "tell":
            self._note(what, value)
        elif kind == "ask":
            task = asyncio.create_task(self._reply(number, what, value), name=f"answer of {what}")
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)
        elif (asked := self._asked.get(number)) is not None and not asked.done():
            if what is None:
                asked.set_result(value)
            else:
                asked.set_exception(self._errors[what](value))

    async def _reply(self, number: int, name: str, arguments: tuple[Any, ...]) -> None:
        assert self._answer is not None
        try:
            self._write(("answer", number, None, await self._answer(name, arguments)))
        except Exception as exc:
            kind = next((kind for kind, each in enumerate(self._errors) if isinstance(exc, each)), -1)
            text = str(exc) if isinstance(exc, LightningError) else f"{type(exc).__name__}: {exc}"
            self._write(("answer", number, kind, text))

    def _write(self, message: tuple[Any, ...]) -> None:
        if self._transport is not None:
            data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
            header = _SHORT.pack(len(data)) if len(data) <= _LONGEST_SHORT else _SHORT.pack(-1) + _LONG.pack(len(data))
            self._transport.write(header + data)


def describe_exit(code: int | None) -> str:
    """Say how a process ended, given its exit status, or a signal as a negative number."""
    if code is None or code >= 0:
        return f"exit code {code}"
    return f"signal {signal.Signals(-code).name}" if -code in set(signal.Signals) else f"signal {-code}"
