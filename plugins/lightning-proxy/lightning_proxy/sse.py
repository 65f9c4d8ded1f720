"""Server-sent events, as they come in pieces.

https://html.spec.whatwg.org/multipage/server-sent-events.html#parsing-an-event-stream
"""

from dataclasses import dataclass
from typing import Any

from lightning_proxy.jsons import dump, parse_object

MAX_EVENT_BYTES = 64 * 1024 * 1024
"""The largest event; what is larger is not an event stream."""

DONE = b"[DONE]"
"""The data of the event that ends OpenAI's streams."""


class NoEventStream(ValueError):
    """What comes is not an event stream."""


@dataclass(slots=True)
class ServerEvent:
    """One event, or a comment."""

    raw: bytes
    """As it came, with the empty line that ends it."""
    name: str
    """What `event:` says; empty where nothing does."""
    data: bytes
    """What `data:` says; empty for a comment."""

    def fields(self) -> dict[str, Any] | None:
        """Return the JSON object that it carries; None for `[DONE]`, a comment, and what is not an object."""
        return parse_object(self.data) if self.data and self.data != DONE else None

    def with_fields(self, fields: dict[str, Any]) -> bytes:
        """Return the bytes of the same event with another object."""
        head = b"event: " + self.name.encode() + b"\n" if self.name else b""
        return head + b"data: " + dump(fields) + b"\n\n"


class EventReader:
    """Cuts what comes into events."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        """Of an event that has not ended; joined once, when it has."""
        self._size = 0
        self._has_return = False
        """Whether the last piece ended with a carriage return: its line feed may be in the next one."""

    @property
    def is_between_events(self) -> bool:
        """Whether all that came is in events that have been returned."""
        return not self._parts and not self._has_return

    def feed(self, piece: bytes) -> list[ServerEvent]:
        """Return the events that are complete by now.

        Raises:
            NoEventStream: When an event does not end.
        """
        if self._has_return:
            piece = b"\r" + piece
        if b"\r" in piece:
            self._has_return = piece.endswith(b"\r")
            piece = piece[: -1 if self._has_return else None].replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        if self._parts:
            ends = b"\n\n" in piece or (piece.startswith(b"\n") and self._parts[-1].endswith(b"\n"))
            piece = self._joined(piece) if ends else self._kept(piece)
        *whole, rest = piece.split(b"\n\n")
        if rest:
            self._kept(rest)
        return [_event(raw) for raw in whole if raw]

    def finish(self) -> list[ServerEvent]:
        """Return the event that was not ended by an empty line when the stream was; none where there is none."""
        rest = self._joined(b"").strip(b"\n")
        return [_event(rest)] if rest else []

    def _joined(self, piece: bytes) -> bytes:
        whole = b"".join((*self._parts, piece))
        self._parts, self._size = [], 0
        return whole

    def _kept(self, piece: bytes) -> bytes:
        """Keep a piece of an event that has not ended, and return what is left to be read."""
        if piece:
            self._parts.append(piece)
            self._size += len(piece)
        if self._size > MAX_EVENT_BYTES:
            raise NoEventStream(f"an event of more than {MAX_EVENT_BYTES} bytes")
        return b""


def _event(raw: bytes) -> ServerEvent:
    if raw.startswith(b"data: ") and b"\n" not in raw:
        return ServerEvent(raw + b"\n\n", "", raw[6:])
    name, data = "", []
    for line in raw.split(b"\n"):
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"event":
            name = value.decode("utf-8", "replace")
        elif field == b"data":
            data.append(value)
    return ServerEvent(raw + b"\n\n", name, b"\n".join(data))
