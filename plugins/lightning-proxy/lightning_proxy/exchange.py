"""One HTTP request of an agent, and the answer to it."""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from functools import cached_property
from typing import Any

from lightning_http.call import BodyRefused, ClientGone, read_body

from lightning_proxy.jsons import dump
from lightning_proxy.refusals import Refused

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = Sequence[tuple[bytes, bytes]]

_JSON: Headers = ((b"content-type", b"application/json"),)

_HURRIED_STALL_SECONDS = 0.5


class Exchange:
    """A request and its answer, over ASGI.

    Args:
        scope: What ASGI says of the request.
        receive: Where its body comes from.
        send: Where its answer goes.
        stall_seconds: How long an agent may take none of its answer before it counts as gone.
    """

    def __init__(self, scope: Message, receive: Receive, send: Send, *, stall_seconds: float) -> None:
        self.method: str = scope["method"]
        raw = scope.get("raw_path")
        self.path = raw.decode("ascii", "replace").partition("?")[0] if raw else str(scope["path"])
        self.query: str = scope["query_string"].decode("ascii", "replace")
        self.status = 0
        """What was answered; 0 before."""
        self.is_done = False
        """Whether the answer has come to its end."""
        self._scope = scope
        self._receive = receive
        self._send = send
        self._stall_seconds = stall_seconds

    @cached_property
    def headers(self) -> dict[str, str]:
        """The request's headers, by lower-case name; of several with one name the last."""
        return {name.decode("latin-1"): value.decode("latin-1") for name, value in self._scope["headers"]}

    async def body(self, max_bytes: int) -> bytes:
        """Read the body, unpacked.

        Raises:
            Refused: When it is too large, or not what its headers say.
            ClientGone: When it does not come.
        """
        try:
            return await read_body(
                self._receive,
                length=self.headers.get("content-length"),
                encoding=self.headers.get("content-encoding", "").strip().lower(),
                max_bytes=max_bytes,
            )
        except BodyRefused as exc:
            if exc.status == 413:
                message = f"the request's body is larger than {max_bytes} bytes, the most that the proxy takes"
                raise Refused(413, "request_too_large", message) from exc
            raise Refused(exc.status, "invalid_request", str(exc)) from exc

    async def gone(self) -> None:
        """Return when the agent does not wait any more. To be called after the body was read."""
        while (await self._receive())["type"] != "http.disconnect":
            continue

    async def answer(self, status: int, body: bytes, headers: Headers = _JSON) -> None:
        """Send an answer in one piece."""
        self.status = status
        sent = [*headers, (b"content-length", b"%d" % len(body))]
        await self._send({"type": "http.response.start", "status": status, "headers": sent})
        await self._send({"type": "http.response.body", "body": body})  # which the server takes, whoever reads it when
        self.is_done = True

    async def answer_json(self, status: int, value: Any) -> None:
        """Send an answer of JSON."""
        await self.answer(status, dump(value))

    async def begin(self, status: int, headers: Headers) -> None:
        """Begin an answer that comes in pieces."""
        self.status = status
        await self._send({"type": "http.response.start", "status": status, "headers": list(headers)})

    async def push(self, piece: bytes) -> None:
        """Send a piece. Waits for an agent that reads slowly.

        Raises:
            ClientGone: When it reads nothing at all for too long.
        """
        await self._push({"type": "http.response.body", "body": piece, "more_body": True})

    async def end(self) -> None:
        """End an answer that comes in pieces."""
        await self._push({"type": "http.response.body", "body": b""})
        self.is_done = True

    def hurry(self) -> None:
        """Wait for hardly any time from now on that the agent takes its answer: the server stops."""
        self._stall_seconds = min(self._stall_seconds, _HURRIED_STALL_SECONDS)

    async def _push(self, message: Message) -> None:
        try:
            async with asyncio.timeout(self._stall_seconds):
                await self._send(message)
        except TimeoutError as exc:
            raise ClientGone from exc


App = Callable[[Message, Receive, Send], Awaitable[None]]


class IncomingBodies:
    """Serves an application, whose requests' bodies have a limit in common while they come.

    A body that comes in one piece, and one that comes alone, is taken whatever its size: the limit of each is another.

    Args:
        app: What answers. `Refused` comes to it out of `receive`.
        max_bytes: How much of bodies that have not come whole is held.
    """

    def __init__(self, app: App, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._bytes = 0

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        body = _Body(self, receive)
        try:
            await self._app(scope, body.receive, send)
        finally:
            body.release()

    def add(self, count: int, of_them: int) -> None:
        """Take bytes of a body that had so many before.

        Raises:
            Refused: When they are too many together with those of others.
        """
        if self._bytes + count > self._max_bytes and self._bytes > of_them:
            raise Refused(
                503,
                "too_many_bytes",
                f"requests that are still coming in have {self._bytes} bytes together, and max_incoming_bytes is "
                f"{self._max_bytes}; try again in a moment",
                retry_after=1.0,
            )
        self._bytes += count

    def remove(self, count: int) -> None:
        """Let go of bytes."""
        self._bytes -= count


class _Body:
    """The body of one request."""

    def __init__(self, all_of_them: IncomingBodies, receive: Receive) -> None:
        self._all = all_of_them
        self._receive = receive
        self._bytes = 0

    async def receive(self) -> Message:
        message = await self._receive()
        if message.get("more_body", False):
            count = len(message.get("body", b""))
            self._all.add(count, self._bytes)
            self._bytes += count
        elif self._bytes:
            self.release()
        return message

    def release(self) -> None:
        """Count it no more: it has come whole, or nobody waits for it."""
        self._all.remove(self._bytes)
        self._bytes = 0
