"""One API that agents speak: what is asked for besides, and how an answer is read.

A stream is read as an answer in one piece is: its events are merged into the object that the API would have given
without streaming, and the dialect reads that.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from lightning_proxy.answer import Answer, failure_of, integer, mapping
from lightning_proxy.jsons import dump
from lightning_proxy.request import Refused, openai_error
from lightning_proxy.sse import DONE, ServerEvent

Fields = dict[str, Any]
"""A JSON object: a request, an answer, or one event of a stream."""

Added = Mapping[str, Any]
"""What the proxy asked for, and the agent did not."""


class Dialect(ABC):
    """An API. Has no state: one serves all calls."""

    path: ClassVar[str]
    """Where it is served, below `/v1`."""
    operation: ClassVar[str]
    """What OpenTelemetry's GenAI conventions call it."""
    provider: ClassVar[str] = "openai"
    """Whose API it is."""
    names: ClassVar[Mapping[str, Sequence[str]] | None] = None
    """How it calls a parameter of a model where that is another name than chat's, or has several; one in an object with
    a dot. None for an API that has no parameters."""
    is_stored: ClassVar[bool] = False
    """Whether the backend keeps answers, unless `store` is false, and gives them again by their ids."""

    writes: ClassVar[bool] = True
    """Whether an answer is written, so that tokens are reserved for it."""

    def serves(self, below: str) -> bool:
        """Whether a path below `/v1` is of this API."""
        return below == self.path

    def read_request(self, fields: Fields, below: str, query: str) -> Fields:
        """Return a request by the names that this class knows.

        Args:
            fields: The body.
            below: The path below `/v1`.
            query: The URL's.

        Raises:
            Refused: When it cannot be read.
        """
        return fields

    def additions(self, request: Fields, *, tokens: bool) -> Fields:
        """Return the fields to add to a request, so that the answer says all that is recorded.

        Args:
            request: What the agent asked.
            tokens: Whether the backend gives token ids.
        """
        return {}

    @abstractmethod
    def read(self, answer: Fields) -> Answer:
        """Read an answer in one piece, or as much of one as `merge` put together."""

    @abstractmethod
    def merge(self, answer: Fields, event: Fields) -> None:
        """Merge an event of a stream into the answer so far. Takes over nothing that may be changed in the event.

        Texts may be `Text`, which collects pieces.
        """

    @abstractmethod
    def has_answer(self, answer: Fields) -> bool:
        """Whether an answer, in one piece or merged, has what holds the model's words, if only an empty list."""

    def is_garbage(self, fields: Fields) -> bool:
        """Whether an event of a stream clearly does not belong to this API, so that clients may fail on it."""
        return False

    def is_end(self, event: ServerEvent, fields: Fields | None) -> bool:
        """Whether this is the event that ends a stream; its fields are None where it has none."""
        return event.data == DONE

    def strip(self, answer: Fields, added: Added) -> None:  # noqa: B027  # most APIs are asked for nothing more
        """Take out of an answer what the agent did not ask for."""

    def strip_event(self, event: Fields, added: Added) -> bool:
        """Do the same for an event of a stream; return False for an event of which nothing is left."""
        return True

    def messages(self, request: Fields) -> list[Fields]:
        """Return what the model is asked, in the form of the GenAI conventions."""
        return []

    def instructions(self, request: Fields) -> list[Fields]:
        """Return the system's instructions where the API has them apart, as parts."""
        return []

    def tools(self, request: Fields) -> list[Any]:
        """Return the tools that the model is offered, in the form of OpenAI's chat API."""
        return []

    def choices(self, request: Fields) -> int:
        """Return how many answers are asked for; 0 where only its last event says that a stream is complete."""
        return 0

    def error(self, refused: Refused) -> Fields:
        """Return the API's error object."""
        return openai_error(refused)

    def error_event(self, refused: Refused) -> bytes:
        """Return the event by which a stream says that it goes no further."""
        return b"data: " + dump(self.error(refused)) + b"\n\n"


class Assembler:
    """Makes one answer of the events of a stream.

    Args:
        dialect: The API.
        choices: How many answers were asked for; 0 where only the last event says that the stream is complete.
    """

    def __init__(self, dialect: Dialect, choices: int = 0) -> None:
        self.is_ended = False
        """Whether the event came that ends the stream."""
        self._dialect = dialect
        self._choices = choices
        self._merged: Fields = {}

    @property
    def id(self) -> str | None:
        """The answer's id, where it is known already."""
        value = self._merged.get("id")
        return value if isinstance(value, str) and value else None

    def feed(self, event: ServerEvent, fields: Fields | None) -> None:
        """Take the next event; its fields are None where it has none."""
        self.is_ended = self.is_ended or self._dialect.is_end(event, fields)
        if fields is not None:
            self._dialect.merge(self._merged, fields)
            if error := _error_of(event, fields):
                self._merged["error"] = error

    @property
    def is_empty(self) -> bool:
        """Whether neither an answer has come nor an error."""
        return not self._dialect.has_answer(self._merged) and self.failure is None

    @property
    def error(self) -> Any:
        """What the stream has as its error; None without one."""
        return self._merged.get("error")

    @property
    def failure(self) -> str | None:
        """What the stream says went wrong."""
        return failure_of(self.error)

    def answer(self) -> Answer:
        """Read the answer, as far as it came."""
        return self._dialect.read(_joined(self._merged))

    def is_complete(self, answer: Answer) -> bool:
        """Whether all answers came that were asked for: each has its finish reason, or the stream its last event."""
        choices = answer.choices
        ended = self.is_ended or bool(self._choices and choices and all(choice.finish_reason for choice in choices))
        return ended and len(choices) >= self._choices


def _error_of(event: ServerEvent, fields: Fields) -> Any:
    """Return what an event says went wrong: as its API says it, or as engines do whose clients pass over that."""
    is_error = event.name == "error" or "error" in (fields.get("type"), fields.get("object"))
    return fields.get("error") or (is_error and fields)


class Text(list[str]):
    """A text whose pieces are joined when all have come."""


def append_text(fields: Fields, name: str, piece: str) -> None:
    """Append a piece to a text among the fields of an answer."""
    known = fields.get(name)
    if type(known) is not Text:
        known = fields[name] = Text([known] if isinstance(known, str) else ())
    known.append(piece)


def merge_usage(answer: Fields, usage: Any) -> None:
    """Merge the numbers of tokens that an event gives; each event has only those that it knows."""
    if isinstance(usage, dict):
        known = mapping(answer.get("usage"))
        answer["usage"] = {**known, **{name: count for name, count in usage.items() if count is not None}}


def item_at(items: list[Fields], index: Any, new_id: Any = None) -> Fields:
    """Return the last item that has this `index`; a new one where none has it with this id, or there is no index."""
    if isinstance(index, int):
        for item in reversed(items):
            if item.get("index") == index and (not new_id or item.get("id") in (None, new_id)):
                return item
    items.append({"index": index} if isinstance(index, int) else {})
    return items[-1]


def read_usage(answer: Answer, usage: Any) -> None:
    """Set the numbers of tokens, by the names of any of the APIs."""
    given = mapping(usage)
    answer.input_tokens = _first_integer(given, ("prompt_tokens", "input_tokens"))
    answer.output_tokens = _first_integer(given, ("completion_tokens", "output_tokens"))
    details = mapping(given.get("prompt_tokens_details") or given.get("input_tokens_details"))
    cached = integer(details.get("cached_tokens"))
    answer.cached_tokens = integer(given.get("cache_read_input_tokens")) if cached is None else cached
    answer.written_tokens = _first_integer(given, ("cache_creation_input_tokens",))
    if answer.written_tokens is None:  # OpenRouter's name
        answer.written_tokens = integer(details.get("cache_write_tokens"))
    answer.written_for_an_hour = integer(mapping(given.get("cache_creation")).get("ephemeral_1h_input_tokens"))
    thought = mapping(given.get("completion_tokens_details") or given.get("output_tokens_details"))
    answer.reasoning_tokens = integer(thought.get("reasoning_tokens"))


def _first_integer(usage: Fields, names: Iterable[str]) -> int | None:
    return next((count for name in names if (count := integer(usage.get(name))) is not None), None)


def _joined(value: Any) -> Any:
    """Return a merged answer as the API gives it: texts joined, items in the order of their indices."""
    if type(value) is Text:
        return "".join(value)
    if isinstance(value, dict):
        return {name: _joined(each) for name, each in value.items()}
    if isinstance(value, list) and value and isinstance(value[0], dict):
        if "index" in value[0]:
            value = sorted(value, key=lambda item: item.get("index", len(value)))
        return [_joined(item) for item in value]
    return value
