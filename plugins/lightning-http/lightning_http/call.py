"""One request: who asks, for which run, and how it is answered."""

import asyncio
import json
import zlib
from collections.abc import Awaitable, Callable, Coroutine, Mapping, MutableMapping, Sequence
from typing import Any, TypeVar

from pydantic import ValidationError

from lightning_core.errors import InvalidRequest, StoreError, StoreUnavailable
from lightning_core.store.base import LightningStore
from lightning_core.types import PaginatedResult
from lightning_http import wire
from lightning_http.auth import Identity, Role, Unauthorized
from lightning_http.messages import PENDING_HEADER, REQUEST_HEADER, RUN_HEADER, STATUS_OF
from lightning_http.service import Service
from lightning_http.web_pages import PAGE_HEADERS

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


class ClientGone(Exception):
    """Whoever asked does not wait for the answer any more."""


class BodyRefused(Exception):
    """A body that is not read; `status` says how that is answered."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


async def read_body(receive: Receive, *, length: str | None, encoding: str, max_bytes: int) -> bytes:
    """Return a request's body, unpacked.

    Args:
        receive: Where it comes from.
        length: The header `Content-Length`, if there is one.
        encoding: The header `Content-Encoding`: none, `identity` or `gzip`.
        max_bytes: The largest body that is read, packed or not.

    Raises:
        BodyRefused: It is larger, its encoding is another one, or it is not what its encoding says.
        ClientGone: It does not come.
    """
    if encoding not in ("", "identity", "gzip"):
        raise BodyRefused(415, f"Content-Encoding is {encoding!r}; it is 'gzip', or none")
    if length is not None and length.isdigit() and int(length) > max_bytes:
        raise _too_large(max_bytes, length)
    message = await receive()
    body = message.get("body", b"")
    if message.get("more_body", False):
        parts, size = [body], len(body)
        while message.get("more_body", False):
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > max_bytes:
                raise _too_large(max_bytes, f"more than {max_bytes}")
        body = b"".join(parts)
    elif message["type"] == "http.disconnect":
        raise ClientGone
    if len(body) > max_bytes:
        raise _too_large(max_bytes, str(len(body)))
    return _unpack(body, max_bytes) if encoding == "gzip" and body else bytes(body)


def _unpack(body: bytes, max_bytes: int) -> bytes:
    unpacking = zlib.decompressobj(wbits=31)
    try:
        unpacked = unpacking.decompress(body, max_bytes + 1)
    except zlib.error as exc:
        raise BodyRefused(400, f"the body is not what its Content-Encoding 'gzip' says: {exc}") from exc
    if len(unpacked) > max_bytes:
        raise _too_large(max_bytes, f"more than {max_bytes}, unpacked")
    if not unpacking.eof:
        raise BodyRefused(400, "the body is not what its Content-Encoding 'gzip' says: it ends too early")
    if unpacking.unused_data:
        raise BodyRefused(
            400,
            f"the body has {len(unpacking.unused_data)} bytes behind the end of what is packed; pack it as one gzip "
            "member",
        )
    return unpacked


def _too_large(max_bytes: int, got: str) -> BodyRefused:
    return BodyRefused(413, f"the body has {got} bytes; this store takes at most {max_bytes}. Send it in parts")


Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
T = TypeVar("T")

_WANTED = {
    name.encode(): name
    for name in (
        *("authorization", "content-type", "content-length", "content-encoding", "accept-encoding"),
        *(RUN_HEADER, REQUEST_HEADER, *PAGE_HEADERS),
    )
}
_JSON = "application/json"


class Call:
    """A request under way.

    Args:
        service: What all requests share.
        scope: The request, as ASGI gives it.
        receive: Where its body comes from.
        send: Where the answer goes.
    """

    __slots__ = ("_receive", "_send", "extra_headers", "headers", "identity", "scope", "service", "status", "store")

    def __init__(self, service: Service, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        self.service = service
        self.scope = scope
        self.headers = {_WANTED[name]: value.decode("latin-1") for name, value in scope["headers"] if name in _WANTED}
        self.identity = Identity(Role.ANYBODY)
        self.store: LightningStore = service.store
        """What the request is about; set when the caller is known."""
        self.status = 0
        """The status of the answer; 0 before there is one."""
        self.extra_headers: list[tuple[bytes, bytes]] = []
        self._receive = receive
        self._send = send

    @property
    def request_id(self) -> str | None:
        """The id under which a repetition of this request is harmless, if it has one.

        Raises:
            InvalidRequest: When it is longer than a store keeps.
        """
        given = self.headers.get(REQUEST_HEADER)
        if given is not None and len(given) > 200:
            raise InvalidRequest(f"the header {REQUEST_HEADER} has {len(given)} characters; it has at most 200")
        return given or None

    async def body(self) -> bytes:
        """Read the body; see `read_body`."""
        return await read_body(
            self._receive,
            length=self.headers.get("content-length"),
            encoding=self.headers.get("content-encoding", "").strip().lower(),
            max_bytes=self.service.limits.max_body_bytes,
        )

    def media_type(self) -> str:
        """Return the type of the body, without its parameters."""
        return str(self.headers.get("content-type", "").partition(";")[0].strip().lower())

    async def json_body(self) -> bytes:
        """Read a body of JSON; empty where there is none.

        Raises:
            BodyRefused: When it is of another type. A page in a browser can send those without being asked.
        """
        body = await self.body()
        if body and self.media_type() != _JSON:
            raise BodyRefused(415, f"Content-Type is {self.media_type()!r}; this store takes {_JSON!r}")
        return body

    async def wait(
        self, work: Coroutine[Any, Any, T], *, poll_seconds: float | None, until_drained: bool = False
    ) -> tuple[bool, T | None]:
        """Await something that takes its time, as long as somebody waits for it.

        Args:
            work: What to await; it is cancelled when it is not awaited any more.
            poll_seconds: The longest time to wait, besides the server's own limit.
            until_drained: Whether this is a wait for work, which ends as soon as the server begins to shut down.

        Returns:
            Whether it is done, and what it gave; False and None when it was cut short.

        Raises:
            ClientGone: When the client is.
            StoreUnavailable: When the server shuts down.
        """
        limit = self.service.limits.max_wait_seconds
        seconds = limit if poll_seconds is None else min(poll_seconds, limit)
        task = asyncio.ensure_future(work)
        gone = asyncio.ensure_future(self._gone())
        end = self.service.draining if until_drained else self.service.closing
        ending = asyncio.ensure_future(end.wait())
        try:
            await asyncio.wait([task, gone, ending], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await _end(gone, ending, *(() if task.done() else (task,)))
        if not task.cancelled():
            return True, task.result()
        if gone.done() and not gone.cancelled():
            raise ClientGone
        if end.is_set():
            raise draining()
        self.extra_headers.append((PENDING_HEADER.encode(), b"true"))
        return False, None

    async def _gone(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            continue

    def page(self, limit: int) -> int:
        """Return the limit to ask the store for.

        Raises:
            InvalidRequest: When it is more than a page holds.
        """
        largest = self.service.limits.max_page_size
        if limit > largest:
            raise InvalidRequest(f"limit is {limit}; a page of this store holds at most {largest}")
        return largest if limit == -1 else limit

    def whole(self, result: PaginatedResult[T], limit: int) -> PaginatedResult[T]:
        """Return the result of a query with the limit that was asked for.

        Raises:
            InvalidRequest: When all were asked for, and do not fit into a page.
        """
        if limit == -1:
            if result.total > result.offset + len(result.items):
                raise InvalidRequest(
                    f"limit is -1, and {result.total} match; a page of this store holds at most "
                    f"{self.service.limits.max_page_size}: ask with limit and offset"
                )
            result.limit = -1
        return result

    # Answers

    async def answer(self, status: int, body: bytes, media_type: str = _JSON) -> None:
        """Send the answer."""
        self.status = status
        headers = [
            (b"content-type", media_type.encode()),
            (b"content-length", b"%d" % len(body)),
            *self.extra_headers,
        ]
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
        await self._send({"type": "http.response.body", "body": body})

    async def answer_error(self, exc: Exception) -> None:
        """Send what is known of an error, which is never a traceback."""
        status, answer = explain(exc)
        if status == 401:
            self.extra_headers.append((b"www-authenticate", b"Bearer"))
        if status == 503:
            self.extra_headers.append((b"retry-after", b"1"))
        await self.answer(status, json.dumps(answer).encode())


def draining() -> StoreUnavailable:
    """Return the error of a server that shuts down."""
    return StoreUnavailable("the store is shutting down")


def explain(exc: Exception) -> tuple[int, Mapping[str, Any]]:
    """Return the status and the body by which an error is answered."""
    if isinstance(exc, ValidationError):
        return 422, _told("InvalidRequest", wire.in_words(exc), _faults(exc))
    if isinstance(exc, BodyRefused):
        return exc.status, _told("InvalidRequest", str(exc))
    if isinstance(exc, Unauthorized):
        return 401, _told("AccessDenied", str(exc))
    if isinstance(exc, StoreError):
        kind = next(kind for kind in type(exc).__mro__ if kind in STATUS_OF)
        return STATUS_OF[kind], _told(kind.__name__, str(exc))
    return 500, _told("InternalError", "the store failed; its log says why")


def _told(error: str, message: str, detail: Any = None) -> dict[str, Any]:
    return {"error": error, "message": message, "detail": message if detail is None else detail}


def _faults(exc: ValidationError) -> Sequence[Mapping[str, Any]]:
    return [
        {"loc": ["body", *fault["loc"]], "msg": fault["msg"], "type": fault["type"]}
        for fault in exc.errors(include_url=False, include_context=False, include_input=False)
    ]


async def _end(*tasks: "asyncio.Future[Any]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
