"""Limits on requests, and their body: read up to one, and unpacked. The model proxy uses both, without FastAPI."""

import zlib
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, PositiveInt

if TYPE_CHECKING:
    from starlette.requests import Request

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


@dataclass(frozen=True)
class ConnectionLimits:
    """What a client may send before the server knows who it is."""

    max_head_bytes: PositiveInt = 64 * 1024
    """The largest head of a request: its first line and its headers."""
    head_seconds: Seconds = 30.0
    """How long a head may take, from its first byte or the connection's begin."""
    max_body_bytes: PositiveInt = 64 * 1024 * 1024
    """The largest body, unpacked."""
    body_seconds: Seconds = 60.0
    """How long a body may let the server wait for its next part; where it is answered already, for its end."""
    idle_seconds: Seconds = 75.0
    """How long a connection is kept without a request. Longer than clients keep it, so that it is they who close it."""


class ClientGone(Exception):
    """The client no longer waits for the answer."""


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
    parts, size, has_more = list[bytes](), 0, True
    while has_more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > max_bytes:
            raise _too_large(max_bytes, f"more than {max_bytes}")
        has_more = message.get("more_body", False)
    body = b"".join(parts)
    return _unpack(body, max_bytes) if encoding == "gzip" and body else body


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


async def body_of(request: "Request", max_bytes: int) -> bytes:
    """Return a request's body, unpacked; see `read_body`."""
    return await read_body(
        request.receive,
        length=request.headers.get("content-length"),
        encoding=request.headers.get("content-encoding", "").strip().lower(),
        max_bytes=max_bytes,
    )


def media_type_of(request: "Request") -> str:
    """Return the type of the body, without its parameters."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()
