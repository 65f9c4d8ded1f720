"""What is known of one call, from its beginning to its end."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from lightning_core.proxy import parts
from lightning_core.proxy.answer import Answer, AnswerChoice
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
    body_bytes: int = 0
    """How many bytes the agent sent."""
    size: int = 0
    """About how many bytes it holds."""
    duration: float = 0.0
    first_chunk_seconds: float | None = None
    """From the call's beginning to the first piece of a stream."""
    address: str | None = None
    """The backend that it went to last."""
    model_name: str | None = None
    """The model that it went to, by the name that agents say."""
    price: Callable[[int | None, int | None, int | None], float | None] | None = None
    """Says what a call costs there: see `Replica.cost`. None for a call that was not sent."""
    tries: int = 0
    weight_version: str | None = None
    """When the call was sent."""
    last_weight_version: str | None = None
    """When it ended."""
    answer: Answer = field(default_factory=Answer)
    error_kind: str | None = None
    error: str | None = None
    error_code: str | None = None
    """What the backend calls it."""
    is_refused: bool = False
    """Whether the backend refused it, and so used nothing."""
    was_taken: bool = False
    """Whether the agent had the whole answer of a stream, if not all of the stream."""
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

    def spent(self) -> tuple[int, int]:
        """Return how many tokens went in and out as a budget counts them: what nobody told is estimated.

        A token for 4 bytes of the request, and for 4 characters of the answer as far as it came.
        """
        given, taken = self.input_tokens, self.output_tokens
        if given is None:
            given = _quarter(self.body_bytes)
        if taken is None or self.error_kind is not None:  # what a stream that broke off said of it was not the last
            taken = max(taken or 0, sum(map(_received, self.answer.choices)))
        return given, taken


def _received(choice: AnswerChoice) -> int:
    if choice.token_ids is not None:
        return len(choice.token_ids)
    calls = (parts.tool_call_part(call)["arguments"] for call in choice.tool_calls)
    return _quarter(sum(len(str(said)) for said in (choice.content, choice.reasoning, *calls) if said))


def _quarter(count: int) -> int:
    return -(-count // 4)
