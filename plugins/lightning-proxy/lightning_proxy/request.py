"""One HTTP request of an agent, the answer to it, and the errors that it may get for an answer."""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from functools import cached_property
from typing import Any
from urllib.parse import unquote

from lightning_http.body import BodyRefused, ClientGone, read_body

from lightning_core.errors import ProxyError
from lightning_proxy.jsons import dump

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = Sequence[tuple[bytes, bytes]]

_JSON: Headers = ((b"content-type", b"application/json"),)

STALL_SECONDS = 120.0
"""How long an agent may read nothing of its answer before it counts as gone."""
_HURRIED_STALL_SECONDS = 0.5
_KEY = "key="


ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
"""What Anthropic's API calls an error, by its HTTP status."""


TOO_LONG = "context_length_exceeded"
"""OpenAI's word, by which agents know that they have to forget something."""


class Refused(ProxyError):
    """A request that is answered with an error.

    Args:
        status: The HTTP status.
        kind: What happened, as a name for programs: `backend_unavailable`, `unattributed`, ...
        message: The same for people: what, got, what next.
        retry_after: After how many seconds to try again; None where that would not help.
    """

    def __init__(
        self,
        status: int,
        kind: str,
        message: str,
        *,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.message = message
        self.retry_after = retry_after

    def headers(self) -> list[tuple[bytes, bytes]]:
        """Return the headers of the answer, which say when to try again."""
        headers = [(b"content-type", b"application/json")]
        if self.retry_after is not None:
            headers.append((b"retry-after", b"%d" % max(1, round(self.retry_after))))
        else:
            headers.append((b"x-should-retry", b"false"))
        if self.status == 401:
            headers.append((b"www-authenticate", b"Bearer"))
        if self.status == 426:
            headers += [(b"upgrade", b"HTTP/1.1"), (b"connection", b"upgrade")]
        return headers


def unavailable(kind: str, message: str, *, retry_after: float = 1.0) -> Refused:
    """Return the error of a call that may be answered in a moment."""
    return Refused(503, kind, message, retry_after=retry_after)


def invalid(message: str) -> Refused:
    """Return the error of a request that is not as its API has it."""
    return Refused(400, "invalid_request", message)


def proxy_stopped() -> Refused:
    """Return the error of a request that is cut off because the proxy stops."""
    message = "the proxy was stopped before the answer came to its end; try again in a moment"
    return unavailable("proxy_stopped", message)


def openai_error(refused: Refused) -> dict[str, Any]:
    """Return an error in the form of OpenAI's API."""
    types = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
    kind = types.get(refused.status, "invalid_request_error" if refused.status < 500 else "server_error")
    return {"error": {"message": refused.message, "type": kind, "param": None, "code": refused.kind}}


def anthropic_error(refused: Refused) -> dict[str, Any]:
    """Return an error in the form of Anthropic's API."""
    kind = ANTHROPIC_TYPES.get(refused.status, "invalid_request_error" if refused.status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": f"{refused.message} ({refused.kind})"}}


class Request:
    """A request over ASGI, and how it is answered.

    Args:
        scope: The ASGI scope.
        receive: Gives the body.
        send: Takes the answer.
    """

    def __init__(self, scope: Message, receive: Receive, send: Send) -> None:
        self.method: str = scope["method"]
        raw = scope.get("raw_path")
        self.path = raw.decode("ascii", "replace").partition("?")[0] if raw else str(scope["path"])
        query = scope["query_string"].decode("ascii", "replace").split("&")
        self.query = "&".join(part for part in query if not part.startswith(_KEY))
        """Without a `key`, which is for the proxy, as Google's clients may send it."""
        self.key = next((unquote(part.removeprefix(_KEY)) for part in query if part.startswith(_KEY)), None)
        self.status = 0
        """The HTTP status that was answered; 0 before."""
        self.is_done = False
        """Whether the answer is complete."""
        self._scope = scope
        self._receive = receive
        self._send = send
        self._stall_seconds = STALL_SECONDS

    @cached_property
    def headers(self) -> dict[str, str]:
        """The request's headers, by lower-case name; of several with one name the last."""
        return {name.decode("latin-1"): value.decode("latin-1") for name, value in self._scope["headers"]}

    async def read_body(self, max_bytes: int) -> bytes:
        """Read the body, and decompress it.

        Raises:
            Refused: When it is too large, or is not what its headers say.
            ClientGone: When the agent hangs up before it is complete.
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

    async def wait_closed(self) -> None:
        """Return when the agent has hung up. Call it after the body was read."""
        while (await self._receive())["type"] != "http.disconnect":
            continue

    async def respond(self, status: int, body: bytes, headers: Headers = _JSON) -> None:
        """Send a complete answer."""
        self.status = status
        sent = [*headers, (b"content-length", b"%d" % len(body))]
        await self._send({"type": "http.response.start", "status": status, "headers": sent})
        await self._send({"type": "http.response.body", "body": body})  # the server buffers it
        self.is_done = True

    async def respond_json(self, status: int, value: Any) -> None:
        """Send a JSON answer."""
        await self.respond(status, dump(value))

    async def start_stream(self, status: int, headers: Headers) -> None:
        """Start an answer that is sent in pieces."""
        self.status = status
        await self._send({"type": "http.response.start", "status": status, "headers": list(headers)})

    async def send_piece(self, piece: bytes) -> None:
        """Send the next piece. Waits for an agent that reads slowly.

        Raises:
            ClientGone: When it reads nothing for `STALL_SECONDS`.
        """
        await self._send_within_limit({"type": "http.response.body", "body": piece, "more_body": True})

    async def end_stream(self) -> None:
        """End an answer that is sent in pieces."""
        await self._send_within_limit({"type": "http.response.body", "body": b""})
        self.is_done = True

    def hurry(self) -> None:
        """Wait at most half a second for the agent to read from now on: the server stops."""
        self._stall_seconds = min(self._stall_seconds, _HURRIED_STALL_SECONDS)

    async def _send_within_limit(self, message: Message) -> None:
        try:
            async with asyncio.timeout(self._stall_seconds):
                await self._send(message)
        except TimeoutError as exc:
            raise ClientGone from exc
