"""Any endpoint that speaks OpenAI's API, or Anthropic's: vLLM, SGLang, the providers themselves."""

import io
import os
import time
from collections.abc import AsyncIterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.tracing import Trace
from lightning_http.body import Seconds
from pydantic import PositiveInt
from yarl import URL

from lightning_core.errors import ConfigError
from lightning_proxy.backend import (
    VARIABLE,
    Backend,
    BackendAnswer,
    BackendBroke,
    BackendRequest,
    BackendTimeout,
    BackendUnavailable,
    is_retry_header,
)


def from_environment(option: str, value: str) -> str:
    """Return an option's value, which may be in a variable.

    Raises:
        ConfigError: When that is not set.
    """
    if not value.startswith(VARIABLE):
        return value
    name = value.removeprefix(VARIABLE)
    found = os.environ.get(name)
    if not found:
        raise ConfigError(f"{option} is to come from the variable {name}, which is not set; set it")
    return found


BASE_VARIABLE = "OPENAI_BASE_URL"
"""Where the server is that no `api_base` names."""
_PUBLIC_BASE = "https://api.openai.com/v1"
_KEEP_ALIVE_SECONDS = 4.0
"""Shorter than the 5 s after which vLLM's server closes idle connections: a call must not meet one that closes."""
_READ_BUFFER_BYTES = 64 * 1024
"""What is read ahead of a slow agent, twice at most."""
_LARGE_BODY_BYTES = 512 * 1024
_AT_ONCE_SECONDS = 0.05
"""So soon ends a call whose connection was closed already. A backend that takes longer has begun to work on it."""
_PASSED_HEADERS = frozenset({"content-type", "content-disposition", "x-request-id", "request-id"})


class OpenAIBackend(Backend):
    """Hands calls on over a pool of connections.

    Args:
        api_base: Its base URL, `/v1` included where it has one. None for the variable `OPENAI_BASE_URL`, and where that
            is not set, for OpenAI's own.
        api_key: What to say to it; `os.environ/NAME` for a variable. None for `OPENAI_API_KEY` where `api_base` is
            None, else for nothing.
        headers: Sent with every call.
        timeout: Seconds that a whole call may take; None for no limit.
        stream_timeout: Seconds from one piece of a stream to the next, comments not counted; None for `timeout`.
        connect_timeout: Seconds to connect.
        max_connections: How many calls may be under way at once; further ones wait for a connection.
        max_answer_bytes: The largest answer that is taken in one piece.
        return_token_ids: Whether it knows `return_token_ids`, as vLLM does.
        chat_only: Whether it speaks chat, but not Anthropic's messages and OpenAI's responses.

    Raises:
        ConfigError: When `api_base` is not a URL, or the variable of the key is not set.
    """

    def __init__(
        self,
        api_base: str | None = None,
        api_key: str | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        timeout: Seconds | None = 600.0,
        stream_timeout: Seconds | None = None,
        connect_timeout: Seconds = 5.0,
        max_connections: PositiveInt = 4096,
        max_answer_bytes: PositiveInt = 256 * 1024 * 1024,
        return_token_ids: bool = False,
        chat_only: bool = False,
    ) -> None:
        # As OpenAI's client does: the variables are one provider's, and its key is not for another.
        base = (
            os.environ.get(BASE_VARIABLE) or _PUBLIC_BASE
            if api_base is None
            else from_environment("api_base", api_base)
        )
        parts = urlsplit(base)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            name = BASE_VARIABLE if api_base is None else "api_base"
            raise ConfigError(f"{name} is {base!r}; it is the URL of an endpoint, such as http://127.0.0.1:8000/v1")
        key = os.environ.get("OPENAI_API_KEY") if api_key is None and api_base is None else api_key
        key = None if key is None else from_environment("api_key", key)
        self._base = base.rstrip("/")
        self._url = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}"
        """For messages: without a password that it may have."""
        self._host = f"{parts.hostname}{f':{parts.port}' if parts.port else ''}"
        self._headers = {"accept-encoding": "identity", **(headers or {})}
        if key:
            self._headers["authorization"] = f"Bearer {key}"
            self._headers["x-api-key"] = key
        self._timeout = aiohttp.ClientTimeout(total=timeout, sock_connect=connect_timeout)
        self._stream_timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=connect_timeout, sock_read=stream_timeout or timeout
        )
        self._max_connections = max_connections
        self._max_answer_bytes = max_answer_bytes
        self._session: aiohttp.ClientSession | None = None
        self.gives_tokens = return_token_ids
        self.chat_only = chat_only

    @property
    def address(self) -> str:
        return self._host

    async def send(self, request: BackendRequest) -> BackendAnswer:
        is_stream = request.fields is not None and request.fields.get("stream") is True
        timeout = self._stream_timeout if is_stream else self._timeout
        query = f"?{request.query}" if request.query else ""
        connection = _Connection()
        _connection.set(connection)
        began = time.perf_counter()
        try:
            response = await self._open().request(
                request.method,
                URL(f"{self._base}{request.path}{query}", encoded=True),
                data=_payload(request.body),
                headers={**dict(request.headers), **self._headers},
                timeout=timeout,
                allow_redirects=False,
            )
        except (aiohttp.ConnectionTimeoutError, aiohttp.ClientConnectorError) as exc:
            raise BackendUnavailable(f"{self._url} cannot be reached: {_describe(exc)}") from exc
        except TimeoutError as exc:
            raise BackendTimeout(f"{self._url} did not answer within {_limit(timeout)}") from exc
        except (aiohttp.ServerDisconnectedError, ConnectionResetError) as exc:
            message = f"{self._url} closed the connection before it answered"
            was_stale = connection.is_kept and time.perf_counter() - began < _AT_ONCE_SECONDS
            if isinstance(exc, aiohttp.ServerDisconnectedError) and not was_stale:
                raise BackendBroke(message) from exc  # it had the whole call, and may be at it
            raise BackendUnavailable(message) from exc
        except (aiohttp.ClientError, OSError, ValueError) as exc:
            raise BackendBroke(f"{self._url} did not answer as a server does: {_describe(exc)}") from exc
        return _Streamed(response, self._url, timeout, self._max_answer_bytes)

    async def aclose(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=_Pool(limit=self._max_connections, keepalive_timeout=_KEEP_ALIVE_SECONDS),
                cookie_jar=aiohttp.DummyCookieJar(),
                read_bufsize=_READ_BUFFER_BYTES,
                skip_auto_headers=("User-Agent", "Accept"),
            )
        return self._session


@dataclass(slots=True)
class _Connection:
    """The connection that a call goes over."""

    is_kept: bool = True
    """Whether another call used it before."""


_connection: ContextVar[_Connection] = ContextVar("connection of a model call")


class _Pool(aiohttp.TCPConnector):
    """Records the calls that go over a new connection. aiohttp's tracing would, too, but takes time of all."""

    async def _create_connection(
        self, req: aiohttp.ClientRequest, traces: list[Trace], timeout: aiohttp.ClientTimeout
    ) -> ResponseHandler:
        _connection.get().is_kept = False
        return await super()._create_connection(req, traces, timeout)


class _Streamed(BackendAnswer):
    """An answer on a connection."""

    def __init__(
        self, response: aiohttp.ClientResponse, url: str, timeout: aiohttp.ClientTimeout, max_bytes: int
    ) -> None:
        self.status = response.status
        self.headers = [
            (name, value)
            for name, value in response.headers.items()
            if (lower := name.lower()) in _PASSED_HEADERS or is_retry_header(lower)
        ]
        self._response = response
        self._url = url
        self._timeout = timeout
        self._max_bytes = max_bytes

    async def read(self) -> bytes:
        parts: list[bytes] = []
        size = 0
        content = self._response.content
        try:
            while piece := await content.readany():
                parts.append(piece)
                size += len(piece)
                if size > self._max_bytes:
                    self._response.close()
                    raise BackendBroke(
                        f"{self._url} answers with more than {self._max_bytes} bytes; max_answer_bytes sets the limit"
                    )
        except (TimeoutError, aiohttp.ClientError, OSError) as exc:
            raise self._broken(exc) from exc
        return b"".join(parts)

    async def pieces(self) -> AsyncIterator[bytes]:
        content = self._response.content
        waited, began = 0.0, time.perf_counter()
        try:
            while piece := await content.readany():
                if piece.startswith(b":") and _is_comment(piece):
                    waited += time.perf_counter() - began
                    if self._timeout.sock_read is not None and waited > self._timeout.sock_read:
                        raise TimeoutError
                else:
                    waited = 0.0
                yield piece
                began = time.perf_counter()  # an agent that reads slowly is not waited for
        except (TimeoutError, aiohttp.ClientError, OSError) as exc:
            raise self._broken(exc) from exc

    async def aclose(self) -> None:
        if self._response.content.is_eof() and not self._response.content.exception():
            self._response.release()
        else:
            self._response.close()

    def _broken(self, error: Exception) -> BackendTimeout | BackendBroke:
        if isinstance(error, TimeoutError):
            return BackendTimeout(f"{self._url} did not go on with its answer within {_limit(self._timeout)}")
        return BackendBroke(f"{self._url} broke off its answer: {_describe(error)}")


def _payload(body: bytes) -> bytes | io.BytesIO | None:
    """Return a body as aiohttp takes it: a large one is to be sent in parts, so that other calls go on."""
    if len(body) > _LARGE_BODY_BYTES:
        return io.BytesIO(body)
    return body or None


def _is_comment(piece: bytes) -> bool:
    """Whether a piece of a stream says nothing but that its connection lives."""
    return all(line.startswith(b":") for line in piece.splitlines() if line)


def _describe(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _limit(timeout: aiohttp.ClientTimeout) -> str:
    seconds: Any = timeout.total if timeout.total is not None else timeout.sock_read
    return f"{seconds:g} s" if seconds is not None else "its time"
