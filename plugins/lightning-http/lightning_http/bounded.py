"""uvicorn's protocol with limits on what a client sends, and on how long it takes."""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from lightning_http.connection_limits import ConnectionLimits


class BoundedProtocol(HttpToolsProtocol):
    """Closes connections whose requests are too large, or do not come whole.

    uvicorn 0.54 itself limits a head with h11 only, waits for requests without end, and reads the whole body of one
    that is answered already.

    Args:
        limits: How much may come, and how long it may take.
        arguments: uvicorn's.
    """

    def __init__(self, *arguments: Any, limits: ConnectionLimits, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._limits = limits
        self.timeout_keep_alive = limits.idle_seconds  # type: ignore[assignment]  # uvicorn hands it to call_later
        self._look_seconds = min(limits.head_seconds, limits.body_seconds)
        self._timer: asyncio.TimerHandle | None = None
        self._deadline: float | None = None
        """When more has to have come; None while it is the server's turn."""
        self._awaited = ""
        self._bare_bytes = 0
        """What came since the last part of a body: a head, trailers."""
        self._unwanted_bytes = 0
        """Bytes of the body that arrived after its request was answered."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect("head", self._limits.head_seconds)
        self._timer = self.loop.call_later(self._look_seconds, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._bare_bytes += len(data)
        super().data_received(data)
        if self._bare_bytes > self._limits.max_head_bytes:
            self._refuse_head()
        elif self._deadline is None and self.cycle.response_complete and self.timeout_keep_alive_task is None:
            # What came is the end of a request that is answered, or a line break: the connection is idle again.
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._bare_bytes = 0
        self._expect("head", self._limits.head_seconds)

    def on_headers_complete(self) -> None:
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > self._limits.max_head_bytes:
            self._refuse_head()
            raise ValueError("the head is too large")  # ends the parsing
        self._unwanted_bytes = 0
        self._expect("body", self._limits.body_seconds)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        super().on_body(body)
        self._bare_bytes = 0
        if not self.cycle.response_complete:
            self._expect("body", self._limits.body_seconds)
            return
        self._unwanted_bytes += len(body)
        if self._unwanted_bytes > self._limits.max_body_bytes:
            self.transport.close()

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._bare_bytes = 0
        self._deadline = None

    def send_400_response(self, msg: str) -> None:
        if not self.transport.is_closing():  # it is where a head was refused
            super().send_400_response(msg)

    def _expect(self, part: str, seconds: float) -> None:
        self._awaited = part
        self._deadline = self.loop.time() + seconds

    def _look(self) -> None:
        now = self.loop.time()
        if self._deadline is not None and self.flow.read_paused:  # it is the server that lets wait
            self._deadline = now + self._look_seconds
        elif self._deadline is not None and now >= self._deadline:
            seconds = getattr(self._limits, f"{self._awaited}_seconds")
            self._refuse(408, f"the {self._awaited} of the request did not come within {seconds:g} s")
            return
        following = now + self._look_seconds
        at = following if self._deadline is None else min(self._deadline, following)
        self._timer = self.loop.call_at(at, self._look)

    def _refuse_head(self) -> None:
        self._refuse(431, f"the head of the request is larger than {self._limits.max_head_bytes:,} bytes")

    def _refuse(self, status: int, message: str) -> None:
        if self.transport.is_closing():
            return
        head = f"content-type: text/plain\r\ncontent-length: {len(message)}\r\nconnection: close\r\n\r\n"
        self.transport.write(STATUS_LINE[status] + head.encode() + message.encode())
        self.transport.close()
