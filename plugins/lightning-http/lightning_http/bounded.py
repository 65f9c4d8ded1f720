"""uvicorn's protocol, with limits on what a client sends, and on how long it takes."""

import asyncio
from contextlib import suppress
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from lightning_http.body import ConnectionLimits

_PERSISTENCE = (b"close", b"keep-alive")


class _Parser(httptools.HttpRequestParser):
    """Reads a request that asks for another protocol once more, as one that does not: httptools leaves out its body."""

    def __init__(self, protocol: HttpToolsProtocol) -> None:
        self._protocol = protocol
        self._start()

    def _start(self) -> None:
        super().__init__(self._protocol)
        with suppress(AttributeError):  # httptools < 0.6.3
            self.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does

    def feed_data(self, data: Any) -> None:
        while True:
            try:
                super().feed_data(data)
            except httptools.HttpParserUpgrade as exc:
                if not self.asks_for_upgrade():
                    raise
                (end,) = exc.args
                data = self._head_without_wish() + data[end:]
                self._start()  # after `Connection: close` nothing is read otherwise
            else:
                return

    def asks_for_upgrade(self) -> bool:
        """Whether the request that is being read asks for another protocol; a tunnel is not one."""
        return self.should_upgrade() and self.get_method() != b"CONNECT"

    def _head_without_wish(self) -> bytes:
        """Return the head without what makes it a wish; its header `Upgrade` still tells of that."""
        lines = [b"%s %s HTTP/%s" % (self.get_method(), self._protocol.url, self.get_http_version().encode())]
        for name, value in self._protocol.headers:
            if name == b"connection":
                value = b",".join(token for token in value.lower().split(b",") if token.strip() in _PERSISTENCE)
            lines.append(b"%s: %s" % (name, value))
        return b"\r\n".join([*lines, b"", b""])


class BoundedProtocol(HttpToolsProtocol):
    """Closes connections whose requests are too large, or do not come whole.

    uvicorn 0.54 itself limits a head with h11 only, waits for requests without end, reads the whole body of one that is
    answered already, and drops that of one that asks for another protocol (`Upgrade: h2c`, as Java's client does with
    each). RFC 9110, section 7.8, lets a server answer it in this one.

    Args:
        limits: How much may come, and how long it may take.
        arguments: uvicorn's.
    """

    def __init__(self, *arguments: Any, limits: ConnectionLimits, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.parser: _Parser = _Parser(self)
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
        if self.parser.asks_for_upgrade():  # it is read once more, as one that does not
            return
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
        if self.parser.asks_for_upgrade():
            return
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
