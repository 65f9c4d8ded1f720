"""Model calls: what an agent said to a model and what came back, from spans of whatever source, once each."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import zip_longest
from typing import Any, NamedTuple, TypeVar

from lightning_core.adapter import dialects, genai
from lightning_core.adapter.dialects import is_call_span, response_id
from lightning_core.adapter.tokens import TokenRecord, read_tokens
from lightning_core.adapter.tree import in_order, place_of
from lightning_core.adapter.usage import Usage, total_usage
from lightning_core.types import Span


def has_failed(span: Span) -> bool:
    """Tell whether what the span covers ended in an error."""
    return span.status.status_code == "ERROR" or genai.ERROR_TYPE in span.attributes


def group_calls(ordered: Sequence[Span], is_call: Callable[[Span], bool] = is_call_span) -> list[list[Span]]:
    """Put the spans that recorded one call together.

    Two spans are of one call when they have the same response id, or when one lies within the other and nothing says
    that they are two: see `docs/components.md`. The proxy writes one span a call, so two of its spans are two calls:
    some servers give all answers the same id.

    Args:
        ordered: The spans of an attempt, in its order.
        is_call: Which of them are of model calls.

    Returns:
        A list for each call, in the order of each call's first span; its spans in the order given.
    """
    calls = [span for span in ordered if is_call(span)]
    ids = [response_id(span) for span in calls]
    groups = _Groups(calls)
    for outer, inner in _nested_calls(ordered, calls):
        for same in _same_call(outer, inner, calls, ids):
            groups.join(outer, same)
    with_id: dict[str, list[int]] = {}
    for place, found in enumerate(ids):
        if found is not None:
            with_id.setdefault(found, []).append(place)
    for places in with_id.values():
        groups.join_same_id(places)

    found_groups: dict[int, list[Span]] = {}
    for place, span in enumerate(calls):
        found_groups.setdefault(groups.leader(place), []).append(span)
    return list(found_groups.values())


class _Groups:
    """Which calls are the same, each by its place."""

    def __init__(self, calls: Sequence[Span]) -> None:
        self._leaders = list(range(len(calls)))
        self._by_proxy = [_is_by_proxy(span) for span in calls]

    def leader(self, place: int) -> int:
        """Return the first place of a group."""
        leaders = self._leaders
        while leaders[place] != place:
            leaders[place] = place = leaders[leaders[place]]
        return place

    def join(self, one: int, other: int) -> None:
        first, second = sorted((self.leader(one), self.leader(other)))
        self._leaders[second] = first
        self._by_proxy[first] = self._by_proxy[first] or self._by_proxy[second]

    def join_same_id(self, places: Sequence[int]) -> None:
        """Join what has one response id: with each call that the proxy saw, what others say of it, in order."""
        leaders = list(dict.fromkeys(self.leader(place) for place in places))
        seen = [leader for leader in leaders if self._by_proxy[leader]] or leaders[:1]
        others = [leader for leader in leaders if not self._by_proxy[leader] and leader != seen[0]]
        for number, other in enumerate(others):
            self.join(seen[number * len(seen) // len(others)], other)


def _is_by_proxy(span: Span) -> bool:
    return span.resource.attributes.get("service.name") == genai.PROXY_SERVICE


def _same_call(outer: int, inner: Sequence[int], calls: Sequence[Span], ids: Sequence[str | None]) -> list[int]:
    """Pick, of the calls directly within a call, those that are the same call."""
    same = [
        place
        for place in inner
        # A failed call within one that went well is a first try.
        if (has_failed(calls[outer]) or not has_failed(calls[place]))
        and (ids[outer] in (None, ids[place]) or ids[place] is None)
    ]
    by_proxy = [place for place in same if _is_by_proxy(calls[place])]
    dropped = set(by_proxy if _is_by_proxy(calls[outer]) else by_proxy[:-1])
    same = [place for place in same if place not in dropped]
    # A span without an id around several calls wraps them, and its answer is the last one's.
    return same if ids[outer] is not None else same[-1:]


def _nested_calls(ordered: Sequence[Span], calls: Sequence[Span]) -> Iterator[tuple[int, list[int]]]:
    """Yield each call that has calls within it, and those; calls between the two take them for themselves."""
    places = {span.span_id: place for place, span in enumerate(calls)}
    parents = {span.span_id: span.parent_id for span in ordered}
    around: dict[str, int | None] = {}
    """By span id, the innermost call that the span lies within."""
    within: dict[int, list[int]] = {}
    for place, span in enumerate(calls):
        path: list[str] = []
        above = span.parent_id
        while above is not None and above in parents and above not in places and above not in around:
            path.append(above)
            around[above] = None  # ends the walk where parents form a circle
            above = parents[above]
        outer = None if above is None else places.get(above, around.get(above))
        for span_id in path:
            around[span_id] = outer
        if outer is not None and outer != place:
            within.setdefault(outer, []).append(place)
    yield from within.items()


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
        return _find_first(_purpose, self.spans)

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

    @property
    def error_types(self) -> set[str]:
        """The kinds of its error, as its spans name them: classes of exceptions, statuses, or what the proxy says."""
        return {str(span.attributes[genai.ERROR_TYPE]) for span in self.spans if genai.ERROR_TYPE in span.attributes}

    @cached_property
    def messages(self) -> tuple[dict[str, Any], ...]:
        """The request's messages, as OpenAI's chat API has them; none when no source recorded them."""
        return tuple(_find_first(dialects.request_messages, self.spans) or ())

    @cached_property
    def tools(self) -> tuple[dict[str, Any], ...]:
        """The tools that the model was offered, as OpenAI's chat API has them."""
        return tuple(_find_first(dialects.offered_tools, self.spans) or ())

    @cached_property
    def answers(self) -> tuple[dict[str, Any], ...]:
        """The assistant's message of each choice; none when no source recorded them."""
        return tuple(_find_first(dialects.answer_messages, self.spans) or ())

    @cached_property
    def usage(self) -> Usage:
        """What it used; the numbers of recorded token ids where no source told a number."""
        given, answers = self.prompt_token_ids, [one.token_ids for one in self.choices if one.token_ids is not None]
        usage = dialects.usage(self.spans)
        return Usage(
            1,
            len(given) if usage.input_tokens is None and given is not None else usage.input_tokens,
            sum(map(len, answers)) if usage.output_tokens is None and answers else usage.output_tokens,
            usage.cost,
        )


def read_model_calls(spans: Sequence[Span]) -> list[ModelCall]:
    """Find the model calls of an attempt, those of its grader, too; see `agent_calls` for those without.

    A call that several sources recorded is one call: its tokens are those of the source that has them, and what that
    one lacks is taken from the others.

    Args:
        spans: The spans of one attempt, in any order.

    Returns:
        The calls, in the order of the attempt.
    """
    return calls_of(group_calls(in_order(spans)))


def agent_calls(spans: Sequence[Span]) -> list[ModelCall]:
    """Find the model calls that are the agent's own: what may be learned from. See `read_model_calls`."""
    return [call for call in read_model_calls(spans) if call.purpose is None]


def read_usage(spans: Sequence[Span]) -> Usage:
    """Add up the model calls of one attempt. A call that several sources recorded counts once.

    One that a budget or a limit kept from starting was never made, and does not count.
    """
    if not any(map(is_call_span, spans)):  # as of most agents' rewards
        return Usage()
    return total_usage(call.usage for call in read_model_calls(spans) if not call.error_types & genai.REFUSED)


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
    records = [read_tokens(dialects.attributes_of(span)) for span in group]
    if len(group) == 1:
        return tuple(group), records[0]
    best = max(range(len(group)), key=lambda place: records[place].rank)
    return (group[best], *group[:best], *group[best + 1 :]), records[best]


def _call(spans: tuple[Span, ...], tokens: TokenRecord, order: int) -> ModelCall:
    error = _find_first(_error, spans)
    reasons = _find_first(dialects.finish_reasons, spans) or []
    choices = tuple(Choice(*of_one) for of_one in zip_longest(tokens.responses, tokens.logprobs, reasons))
    return ModelCall(
        spans=spans,
        order=order,
        model=_find_first(dialects.model, spans),
        response_id=_find_first(response_id, spans),
        error=error,
        prompt_token_ids=tokens.prompt,
        choices=choices or ((Choice(None, None, None),) if error is None else ()),
    )


def _find_first(read: Callable[[Span], T | None], spans: Sequence[Span]) -> T | None:
    for span in spans:
        if found := read(span):
            return found
    return None


def _error(span: Span) -> str | None:
    if not has_failed(span):
        return None
    kind = span.attributes.get(genai.ERROR_TYPE) or "the span's status is ERROR, without a description"
    return span.status.description or str(kind)


def _purpose(span: Span) -> str | None:
    purpose = span.attributes.get(genai.PURPOSE)
    return None if purpose is None else str(purpose)
