"""Model calls: what an agent said to a model and what came back, from spans of whatever source, once each."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import zip_longest
from typing import Any, NamedTuple, TypeVar

from lightning_core.adapter import conversation, genai
from lightning_core.adapter.attributes import decoded
from lightning_core.adapter.grouping import group_calls, has_failed, is_call_span, response_id
from lightning_core.adapter.order import in_order, place_of
from lightning_core.adapter.tokens import NO_TOKENS, TokenRecord, raw_fields, read_tokens
from lightning_core.types import Span

T = TypeVar("T")


class Choice(NamedTuple):
    """One answer of a call, as the engine gave it. The sequences are the span's own; do not change them."""

    token_ids: Sequence[int] | None
    """The answer's token ids; None when no source recorded them, empty when the engine answered with no token."""
    logprobs: Sequence[float] | None
    """The log-probability of each of them; None when they were not recorded, or are not as many."""
    finish_reason: str | None
    """Why the answer ended, such as `stop`, `length` or `tool_calls`."""


@dataclass(frozen=True)
class ModelCall:
    """One call of a model. What was said is read from the spans when it is first asked for."""

    spans: tuple[Span, ...]
    """The spans that recorded it; the first is the one with the tokens, where there is one."""
    order: int
    """Its place among the calls of the attempt, from 0."""
    model: str | None
    """The model that answered, or the one that was asked for."""
    response_id: str | None
    """The id that the engine or the provider gave to the answer."""
    error: str | None
    """Why it failed; None when it went well."""
    prompt_token_ids: Sequence[int] | None = field(repr=False)
    """What the model saw, as the span holds it; None when no source recorded it."""
    choices: tuple[Choice, ...] = field(repr=False)
    """The answers; one unless several were asked for, none when the call failed without one."""

    @property
    def purpose(self) -> str | None:
        """What it was for, where it is none of the agent's own, such as `judge`; None for a call of the agent."""
        return _first_told(_purpose, self.spans)

    @property
    def span_id(self) -> str:
        """The id of the first span."""
        return self.spans[0].span_id

    @property
    def parent_id(self) -> str | None:
        """The span that the first span is part of."""
        return self.spans[0].parent_id

    @property
    def sequence_id(self) -> int:
        """The first span's place among the spans of the attempt."""
        return self.spans[0].sequence_id

    @property
    def start_time(self) -> float | None:
        """When it began, in seconds since the epoch, by the clock of the first span."""
        return self.spans[0].start_time

    @property
    def end_time(self) -> float | None:
        """When it ended, in seconds since the epoch, by the clock of the first span."""
        return self.spans[0].end_time

    @property
    def response_token_ids(self) -> Sequence[int] | None:
        """The token ids of the first choice."""
        return self.choices[0].token_ids if self.choices else None

    @property
    def logprobs(self) -> Sequence[float] | None:
        """The log-probabilities of the first choice."""
        return self.choices[0].logprobs if self.choices else None

    @property
    def finish_reason(self) -> str | None:
        """Why the first choice ended."""
        return self.choices[0].finish_reason if self.choices else None

    @cached_property
    def messages(self) -> tuple[dict[str, Any], ...]:
        """The request's messages, as OpenAI's chat API has them; none when no source recorded them."""
        return tuple(_first_told(conversation.request_messages, self.spans) or ())

    @cached_property
    def tools(self) -> tuple[dict[str, Any], ...]:
        """The tools that the model was offered, as OpenAI's chat API has them."""
        return tuple(_first_told(conversation.offered_tools, self.spans) or ())

    @cached_property
    def answers(self) -> tuple[dict[str, Any], ...]:
        """The assistant's message of each choice; none when no source recorded them."""
        return tuple(_first_told(conversation.answer_messages, self.spans) or ())


def read_model_calls(spans: Sequence[Span]) -> list[ModelCall]:
    """Find the model calls of an attempt, those of its grader, too; see `agent_calls` for those without.

    A call that several sources recorded is one call: its tokens are those of the source that has them, and what that
    one lacks is taken from the others.

    Args:
        spans: The spans of one attempt, in any order.

    Returns:
        The calls, in the order of the attempt.
    """
    return calls_of(group_calls(in_order(spans), is_call_span))


def agent_calls(spans: Sequence[Span]) -> list[ModelCall]:
    """Find the model calls that are the agent's own: what may be learned from. See `read_model_calls`."""
    return [call for call in read_model_calls(spans) if call.purpose is None]


def calls_of(groups: Sequence[Sequence[Span]]) -> list[ModelCall]:
    """Make a call of each group of spans.

    Returns:
        The calls, in the order of the spans that they are read from.
    """
    read = [_best_first(group) for group in groups]
    read.sort(key=lambda one: place_of(one[0][0]))
    return [_call(spans, tokens, order) for order, (spans, tokens) in enumerate(read)]


def call_of(group: Sequence[Span], order: int) -> ModelCall:
    """Make the call that these spans recorded; `order` is its place among the others."""
    return _call(*_best_first(group), order)


def _best_first(group: Sequence[Span]) -> tuple[tuple[Span, ...], TokenRecord]:
    """Return the spans, that with the most tokens first, and those tokens."""
    if len(group) == 1:
        return tuple(group), read_tokens(group[0])
    records = [read_tokens(span) for span in group]
    best = max(range(len(group)), key=lambda place: (records[place].is_complete, records[place] is not NO_TOKENS))
    return (group[best], *group[:best], *group[best + 1 :]), records[best]


def _call(spans: tuple[Span, ...], tokens: TokenRecord, order: int) -> ModelCall:
    error = _first_told(_error, spans)
    return ModelCall(
        spans=spans,
        order=order,
        model=_first_told(_model, spans),
        response_id=_first_told(response_id, spans),
        error=error,
        prompt_token_ids=tokens.prompt,
        choices=_choices(spans, tokens, answered=error is None),
    )


def _first_told(read: Callable[[Span], T | None], spans: Sequence[Span]) -> T | None:
    for span in spans:
        found = read(span)
        if found:
            return found
    return None


def _choices(spans: Sequence[Span], tokens: TokenRecord, *, answered: bool) -> tuple[Choice, ...]:
    reasons = _first_told(_finish_reasons, spans) or []
    found = [Choice(*of_one) for of_one in zip_longest(tokens.responses, tokens.logprobs, reasons)]
    return tuple(found) if found or not answered else (Choice(None, None, None),)


def _error(span: Span) -> str | None:
    if not has_failed(span):
        return None
    if span.status.description:
        return span.status.description
    kind = span.attributes.get(genai.ERROR_TYPE)
    return str(kind) if kind else "the span's status is ERROR, without a description"


def _purpose(span: Span) -> str | None:
    found = span.attributes.get(genai.PURPOSE)
    return None if found is None else str(found)


def _model(span: Span) -> str | None:
    attributes: Mapping[str, Any] = span.attributes
    for name in (genai.RESPONSE_MODEL, genai.REQUEST_MODEL, genai.OUTPUT_MODEL):
        if isinstance(attributes.get(name), str):
            return str(attributes[name])
    if span.name == genai.LITELLM_RAW_SPAN:
        found = raw_fields(attributes).get("model")
        return found if isinstance(found, str) else None
    return None


def _finish_reasons(span: Span) -> list[str | None]:
    attributes = span.attributes
    found = decoded(attributes.get(genai.FINISH_REASONS))
    if isinstance(found, (list, tuple)):
        return [str(reason) if reason is not None else None for reason in found]
    reasons: list[str | None] = []
    for prefix in (genai.COMPLETION, genai.OUTPUT_CHOICES):
        while (reason := attributes.get(f"{prefix}.{len(reasons)}.finish_reason")) is not None:
            reasons.append(str(reason))
        if reasons:
            return reasons
    if span.name == genai.LITELLM_RAW_SPAN:
        return [
            choice.get("finish_reason") for choice in conversation.raw_choices(attributes) if isinstance(choice, dict)
        ]
    return reasons
