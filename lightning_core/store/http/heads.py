"""The head of an answer and the beginning of its body, written as one."""

import asyncio
from typing import Any

from lightning_core.store.http.bounded import BoundedProtocol

_HEAD = b"HTTP/1.1 "
_LARGE_BYTES = 64 * 1024


class HeadsWithBodies(asyncio.Transport):
    """Keeps the head of an answer until the first of its body comes, or the event loop goes round.

    Two writes are two packets, of which each wakes up whoever waits for the answer; and a call to the system costs as
    much as a good part of a short request.

    Args:
        transport: What writes.
        loop: Its event loop.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._transport = transport
        self._loop = loop
        self._head = b""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        head = self._head
        if head:
            self._head = b""
            if len(data) > _LARGE_BYTES:
                self._transport.writelines((head, data))
            else:
                self._transport.write(head + data)
        elif data[: len(_HEAD)] == _HEAD:  # or a part of a body that begins in the same way, to which it does no harm
            self._head = bytes(data)
            self._loop.call_soon(self._write_head)
        else:
            self._transport.write(data)

    def _write_head(self) -> None:
        head, self._head = self._head, b""
        if head:
            self._transport.write(head)

    def close(self) -> None:
        self._write_head()
        self._transport.close()

    def abort(self) -> None:
        self._head = b""
        self._transport.abort()

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._transport.get_extra_info(name, default)

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._transport.resume_reading()


class OneWriteProtocol(BoundedProtocol):
    """The protocol of all servers, whose answers begin with one write."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(HeadsWithBodies(transport, self.loop))
