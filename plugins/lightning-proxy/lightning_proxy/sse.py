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
        self._rest = bytearray()
        """Of an event that has not ended."""
        self._had_return = False
        """Whether the last piece ended with a carriage return: its line feed may begin the next one."""

    def feed(self, piece: bytes) -> list[ServerEvent]:
        """Return the events that are complete by now.

        Raises:
            NoEventStream: When an event does not end.
        """
        if self._had_return:
            piece = piece.removeprefix(b"\n")
        self._had_return = piece.endswith(b"\r")
        if b"\r" in piece:
            piece = piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        unread = max(0, len(self._rest) - 1)
        self._rest += piece
        end = self._rest.rfind(b"\n\n", unread)
        whole = bytes(self._rest[: max(0, end)])
        if end >= 0:
            del self._rest[: end + 2]
        if len(self._rest) > MAX_EVENT_BYTES:
            raise NoEventStream(f"an event of more than {MAX_EVENT_BYTES} bytes")
        return [_event(raw) for raw in whole.split(b"\n\n") if raw.strip(b"\n")]

    def finish(self) -> list[ServerEvent]:
        """Return the event that was not ended by an empty line when the stream was; none where there is none."""
        rest = bytes(self._rest).strip(b"\n")
        self._rest.clear()
        return [_event(rest)] if rest else []


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
