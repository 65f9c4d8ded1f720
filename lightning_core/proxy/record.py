"""What is known of one call, from its beginning to its end."""

from dataclasses import dataclass, field
from typing import Any

from lightning_core.proxy.answer import Answer
from lightning_core.proxy.dialects import Dialect
from lightning_core.proxy.owner import Owner


@dataclass(slots=True)
class CallRecord:
    """One call. Times are in seconds since the epoch, durations by a clock that never goes back."""

    owner: Owner
    dialect: Dialect
    request: dict[str, Any]
    """What the agent asked, as it asked it."""
    began: float
    purpose: str | None = None
    """What it is for, where it is none of the agent's own."""
    parent: tuple[str, str] | None = None
    """The trace id and the span id that the agent's call is part of, where it says so."""
    size: int = 0
    """About how many bytes it holds."""
    duration: float = 0.0
    first_chunk_seconds: float | None = None
    """From the call's beginning to the first piece of a stream."""
    address: str | None = None
    """The backend that it went to last."""
    model_name: str | None = None
    """The model that it went to, by the name that agents say."""
    tries: int = 0
    weight_version: str | None = None
    """When the call was sent."""
    last_weight_version: str | None = None
    """When it ended."""
    answer: Answer = field(default_factory=Answer)
    error_kind: str | None = None
    error: str | None = None
    status: int = 0
    """The HTTP status that the agent got; 0 for none."""
    cost: float | None = None

    def fail(self, kind: str, message: str) -> None:
        """Take note of what went wrong; the first one stays."""
        if self.error_kind is None:
            self.error_kind, self.error = kind, message

    @property
    def input_tokens(self) -> int | None:
        """How many tokens went in: as the backend says, or by their ids; None where nobody knows."""
        answer = self.answer
        if answer.input_tokens is None and answer.prompt_token_ids is not None:
            return len(answer.prompt_token_ids)
        return answer.input_tokens

    @property
    def output_tokens(self) -> int | None:
        """How many tokens came out, likewise. A stream that was broken off has no usage, but ids."""
        answer = self.answer
        if answer.output_tokens is None and answer.prompt_token_ids is not None:
            return sum(len(choice.token_ids or ()) for choice in answer.choices)
        return answer.output_tokens

    @property
    def tokens(self) -> int:
        """How many tokens went in and out, of those that are known."""
        return (self.input_tokens or 0) + (self.output_tokens or 0)
