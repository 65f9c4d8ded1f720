"""Which spans are of model calls, and which of those are of the same call."""

from collections.abc import Callable, Iterator, Sequence

from lightning_core.adapter import genai
from lightning_core.adapter.tokens import raw_fields
from lightning_core.types import Span

_SIGNS = (
    f"{genai.PROMPT}.0.role",
    f"{genai.PROMPT}.0.content",
    f"{genai.COMPLETION}.0.role",
    f"{genai.COMPLETION}.0.content",
    f"{genai.COMPLETION}.0.finish_reason",
    genai.RESPONSE_ID,
    genai.PROMPT_TOKEN_IDS,
    genai.RESPONSE_TOKEN_IDS,
    f"{genai.OUTPUT_CHOICES}.0.index",
    f"{genai.OUTPUT_CHOICES}.0.finish_reason",
    genai.OUTPUT_PROMPT_TOKEN_IDS,
)
"""An attribute of these says that a span is of a model call, unless its operation is said to be another one."""


def is_call_span(span: Span) -> bool:
    """Tell whether a span is of a model call, by what its source writes: GenAI, AgentOps, Traceloop, Weave, LiteLLM."""
    attributes = span.attributes
    operation = attributes.get(genai.OPERATION_NAME)
    if operation is not None:
        return operation in genai.INFERENCE_OPERATIONS
    if span.name in (genai.LITELLM_RAW_SPAN, genai.LITELLM_REQUEST_SPAN):
        return True
    if any(attributes.get(name) in ("chat", "completion") for name in genai.REQUEST_TYPES):
        return True
    return any(sign in attributes for sign in _SIGNS)


def response_id(span: Span) -> str | None:
    """Return the id that the engine or the provider gave to the answer; None where it was not recorded."""
    attributes = span.attributes
    found = attributes.get(genai.RESPONSE_ID) or attributes.get(genai.OUTPUT_ID)
    if not found and span.name == genai.LITELLM_RAW_SPAN:
        found = raw_fields(attributes).get("id")
    return found if isinstance(found, str) and found else None


def has_failed(span: Span) -> bool:
    """Tell whether what the span covers ended in an error."""
    return span.status.status_code == "ERROR" or genai.ERROR_TYPE in span.attributes


def group_calls(ordered: Sequence[Span], is_call: Callable[[Span], bool] = is_call_span) -> list[list[Span]]:
    """Put the spans that recorded one call together.

    Two spans are of one call when they have the same response id, or when one lies within the other and nothing says
    that they are two: see `docs/adapters.md`. The proxy writes one span a call, so two of its spans are two calls: some
    servers give all answers the same id.

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
        # LiteLLM gives an answer an id of its own; the provider's is in the raw span.
        and (ids[outer] in (None, ids[place]) or ids[place] is None or calls[place].name == genai.LITELLM_RAW_SPAN)
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
