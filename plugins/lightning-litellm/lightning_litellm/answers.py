"""The library's answers, in the form in which their API has them."""

from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

import aiohttp
from lightning_proxy.apis import DIALECTS
from lightning_proxy.backend import (
    BackendAnswer,
    BackendBroke,
    BackendTimeout,
    BackendUnavailable,
    WholeAnswer,
    is_retry_header,
)
from lightning_proxy.jsons import dump
from lightning_proxy.request import Refused
from pydantic import BaseModel

from lightning_core.errors import ProxyError
from lightning_core.secrets import hide_in_text

EVENT_STREAM = (("content-type", "text/event-stream"),)


def whole(answer: Any) -> bytes:
    """Return an answer in one piece as JSON, with the engine's tokens where OpenAI-compatible servers have them."""
    fields = _plain(answer)
    for choice in fields.get("choices") or ():
        extras = choice.get("provider_specific_fields")
        if isinstance(extras, Mapping) and extras.get("token_ids") is not None:
            choice.setdefault("token_ids", extras["token_ids"])
    return dump(fields)


class StreamedAnswer(BackendAnswer):
    """A stream of the library.

    Args:
        stream: It; gives chunks, events, or bytes.
        path: The API.
        address: Whose it is, for messages.
        library: The library.
    """

    status = 200
    headers = EVENT_STREAM

    def __init__(self, stream: Any, path: str, address: str, library: Any) -> None:
        self._stream = stream
        self._is_chat = path == "/chat/completions"
        self._address = address
        self._library = library

    async def read(self) -> bytes:
        return b"".join([piece async for piece in self.pieces()])

    async def pieces(self) -> AsyncIterator[bytes]:
        try:
            async for each in self._stream:
                yield each if isinstance(each, bytes) else self._event(each)
        except Exception as exc:
            raise failure_of(exc, self._address, self._library, has_begun=True) from exc
        if self._is_chat:
            yield b"data: [DONE]\n\n"

    async def aclose(self) -> None:
        for close in ("aclose", "close"):
            method = getattr(self._stream, close, None)
            if method is not None:
                closing = method()
                if hasattr(closing, "__await__"):
                    await closing
                return

    def _event(self, each: Any) -> bytes:
        fields = _plain(each)
        if self._is_chat:
            for choice in fields.get("choices") or ():
                # The library leaves out pieces without text, with their tokens: what is left are not all of them.
                choice.pop("token_ids", None)
            return b"data: " + dump(fields) + b"\n\n"
        return b"event: " + str(fields.get("type")).encode() + b"\ndata: " + dump(fields) + b"\n\n"


def _plain(answer: Any) -> dict[str, Any]:
    if isinstance(answer, BaseModel):
        # Its models are filled with values of other types than they declare.
        return BaseModel.model_dump(answer, mode="json", exclude_none=True, warnings=False)
    return dict(answer)


_LONGEST_MESSAGE = 2000


def answer_of(error: Exception, path: str, address: str, library: Any) -> WholeAnswer:
    """Return the answer to a call that the library could not make.

    Raises:
        ProxyError: When there is no answer: the backend was not reached, or did not answer as one.
    """
    status = getattr(error, "status_code", None)
    if not isinstance(status, int) or status < 400 or isinstance(error, library.Timeout) or _is_without_answer(error):
        raise failure_of(error, address, library, has_begun=False) from error
    refused = Refused(status, str(getattr(error, "code", None) or status), _message_of(error))
    headers = [("content-type", "application/json")]
    reply_headers = getattr(getattr(error, "response", None), "headers", {})
    headers += [(name.lower(), str(value)) for name, value in reply_headers.items() if is_retry_header(name.lower())]
    return WholeAnswer(status, dump(DIALECTS[path].error(refused)), headers)


def failure_of(error: Exception, address: str, library: Any, *, has_begun: bool) -> ProxyError:
    """Return what to raise for a call that got no answer, or not all of it."""
    message = f"{address}: {_message_of(error)}"
    if isinstance(error, library.Timeout | TimeoutError):
        return BackendTimeout(message)
    if not has_begun and _is_out_of_reach(error):
        return BackendUnavailable(message)
    return BackendBroke(message)


def _is_out_of_reach(error: BaseException) -> bool:
    """Whether nothing was connected: the only failure after which another try is surely safe."""
    return any(
        isinstance(each, aiohttp.ClientConnectorError) or type(each).__name__ in ("ConnectError", "ConnectTimeout")
        for each in _chain(error)
    ) or "Cannot connect to host" in str(error)


def _is_without_answer(error: BaseException) -> bool:
    """Whether no answer came: the library then makes one of its own, of status 500."""
    return _is_out_of_reach(error) or any(
        isinstance(each, aiohttp.ClientConnectionError)
        or type(each).__name__ in ("ReadError", "WriteError", "RemoteProtocolError")
        for each in _chain(error)
    )


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    each: BaseException | None = error
    while each is not None and id(each) not in seen:
        seen.add(id(each))
        yield each
        each = each.__cause__ or each.__context__


def _message_of(error: Exception) -> str:
    return hide_in_text(str(getattr(error, "message", None) or error) or type(error).__name__)[:_LONGEST_MESSAGE]
