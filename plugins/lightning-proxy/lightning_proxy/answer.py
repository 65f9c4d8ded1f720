"""What a model answered, whatever the API: what a call's record holds of it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class AnswerChoice:
    """One answer of a call."""

    content: Any = None
    """A text, or OpenAI's content parts; None where there is none."""
    reasoning: str | None = None
    tool_calls: list[dict[str, Any]] = field(default_factory=list)
    """As OpenAI's chat API has them; a custom tool's may be in a function's form, with its input as the arguments."""
    finish_reason: str | None = None
    token_ids: Sequence[int] | None = None
    """The engine's; None where it gave none."""
    logprobs: Sequence[float] | None = None
    """Of each of `token_ids`; None where it gave none."""


@dataclass(slots=True)
class Answer:
    """An answer, assembled where it was streamed."""

    id: str | None = None
    model: str | None = None
    choices: list[AnswerChoice] = field(default_factory=list)
    prompt_token_ids: Sequence[int] | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    """Of the prompt, those that the backend had in its prefix cache."""
    failure: str | None = None
    """What the answer itself says went wrong."""


def integer(value: Any) -> int | None:
    """Return a count that a backend told; None for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def integers(value: Any) -> list[int] | None:
    """Return token ids; None for anything else. Looks at both ends only: a prompt may have a hundred thousand."""
    if not isinstance(value, list) or (value and (type(value[0]) is not int or type(value[-1]) is not int)):
        return None
    return value


def mapping(value: Any) -> dict[str, Any]:
    """Return an object; an empty one for anything else."""
    return value if isinstance(value, dict) else {}


def objects(value: Any) -> list[dict[str, Any]]:
    """Return the objects of a list; none for anything else."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def text_of(value: Any) -> str | None:
    """Return a text that is not empty; None for anything else."""
    return value if isinstance(value, str) and value else None


def failure_of(error: Any) -> str | None:
    """Return what an answer's `error` says went wrong; None for one that is empty: some give all fields always."""
    if isinstance(error, dict) and not any(error.values()):
        return None
    return str(mapping(error).get("message") or error) if error else None
