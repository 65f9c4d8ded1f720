"""One API that agents speak: what is asked for besides, and what an answer says."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from lightning_proxy.answer import Answer
from lightning_proxy.jsons import dump
from lightning_proxy.request import Refused, openai_error
from lightning_proxy.sse import ServerEvent

Fields = dict[str, Any]
"""A JSON object: a request, an answer, or one event of a stream."""

Added = Mapping[str, Any]
"""What the proxy asked for, and the agent did not."""


class Assembler(ABC):
    """Makes one answer of the events of a stream."""

    def __init__(self) -> None:
        self.answer = Answer()
        self.is_complete = False
        """Whether the stream came to the end that its API gives it."""

    @abstractmethod
    def feed(self, event: ServerEvent, fields: Fields | None) -> None:
        """Take the next event; its fields are None where it has none."""

    def finish(self) -> Answer:
        """Return the answer, as far as it came."""
        return self.answer


class Dialect(ABC):
    """An API. Has no state: one serves all calls."""

    operation: ClassVar[str]
    """What OpenTelemetry's GenAI conventions call it."""
    provider: ClassVar[str] = "openai"
    """Whose API it is."""
    is_stored: ClassVar[bool] = False
    """Whether the backend keeps answers, unless `store` is false, and gives them again by their ids."""

    def additions(self, request: Fields, *, tokens: bool) -> Fields:
        """Return the fields to add to a request, so that the answer says all that is recorded.

        Args:
            request: What the agent asked.
            tokens: Whether the backend gives token ids.
        """
        return {}

    @abstractmethod
    def read(self, answer: Fields) -> Answer:
        """Read an answer that came in one piece."""

    @abstractmethod
    def assembler(self) -> Assembler:
        """Return what reads one that is streamed."""

    def strip(self, answer: Fields, added: Added) -> None:  # noqa: B027  # most APIs are asked for nothing more
        """Take out of an answer what the agent did not ask for."""

    def strip_event(self, event: Fields, added: Added) -> bool:
        """Do the same for an event of a stream; False for an event of which nothing is left."""
        return True

    def messages(self, request: Fields) -> list[Fields]:
        """Return what the model is asked, in the form of the GenAI conventions."""
        return []

    def instructions(self, request: Fields) -> list[Fields]:
        """Return the system's instructions where the API has them apart, as parts."""
        return []

    def tools(self, request: Fields) -> list[Any]:
        """Return the tools that the model is offered, as OpenAI's chat API has them."""
        return []

    def choices(self, request: Fields) -> int:
        """Return how many answers are asked for, where a stream says of each when it is complete; else 0."""
        return 0

    def error(self, refused: Refused) -> Fields:
        """Return the API's error object."""
        return openai_error(refused)

    def error_event(self, refused: Refused) -> bytes:
        """Return the event by which a stream says that it goes no further."""
        return b"data: " + dump(self.error(refused)) + b"\n\n"
