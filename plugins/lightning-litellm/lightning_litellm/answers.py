"""The library's answers, in the form in which their API has them."""

from collections.abc import AsyncIterator, Mapping
from typing import Any

from lightning_proxy.backend import BackendAnswer
from lightning_proxy.jsons import dump
from pydantic import BaseModel

from lightning_litellm.failures import failure_of

EVENT_STREAM = (("content-type", "text/event-stream"),)


def whole(answer: Any) -> bytes:
    """Return an answer in one piece as JSON, with the engine's tokens where OpenAI-compatible servers have them."""
    fields = _plain(answer)
    for choice in fields.get("choices") or ():
        own = choice.get("provider_specific_fields")
        if isinstance(own, Mapping) and own.get("token_ids") is not None:
            choice.setdefault("token_ids", own["token_ids"])
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
        self._is_chat = path in ("/chat/completions", "/completions")
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
