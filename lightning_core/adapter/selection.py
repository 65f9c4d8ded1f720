"""Which model calls of an attempt are wanted: by span name, by agent, and none that computes a reward."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from lightning_core.adapter import genai
from lightning_core.adapter.calls import group_calls
from lightning_core.adapter.dialects import is_call_span
from lightning_core.adapter.rewards import is_reward_computation
from lightning_core.adapter.tree import TraceTree, in_order
from lightning_core.types import Span

ANY_AGENT = "*"
"""The agent of a call that lies within no agent's span."""


class SelectedCall(NamedTuple):
    """A model call that is wanted, as it lies in the tree."""

    spans: tuple[Span, ...]
    """All spans that recorded it, in the order of the attempt."""
    node: TraceTree
    """The first one that is wanted."""
    agent_name: str
    """The innermost agent around it; `*` where there is none."""


class _Place(NamedTuple):
    order: int
    node: TraceTree
    agent_name: str | None
    in_reward: bool


class CallSelector:
    """Selects calls. A call is looked at with all spans that recorded it. Those of a grader are never wanted.

    Args:
        repair_hierarchy: Whether spans that float under the root are first moved to where they belong.
        llm_call_match: A regular expression, searched in span names; None for every model call. A span of the GenAI
            conventions or of OpenInference is also matched as `openai.chat.completion`.
        agent_match: A regular expression, searched in the name of the innermost agent around a call; None for any.
        exclude_llm_call_in_reward: Whether calls within the computation of a reward are left out.

    Raises:
        ValueError: When one of the two is not a regular expression.
    """

    def __init__(
        self,
        *,
        repair_hierarchy: bool,
        llm_call_match: str | None,
        agent_match: str | None,
        exclude_llm_call_in_reward: bool,
    ) -> None:
        self._repair_hierarchy = repair_hierarchy
        self._name_pattern = pattern("llm_call_match", llm_call_match)
        self._agent_pattern = pattern("agent_match", agent_match)
        self._exclude_in_reward = exclude_llm_call_in_reward

    def tree(self, spans: Sequence[Span]) -> TraceTree:
        """Make the tree that calls are selected in."""
        tree = TraceTree.from_spans(spans)
        if self._repair_hierarchy:
            tree.repair_hierarchy()
        return tree

    def select(self, tree: TraceTree) -> list[SelectedCall]:
        """Return the calls that are wanted, a parent's before those within it, else in the order of the attempt."""
        places = self._places(tree)
        ordered = in_order([place.node.span for place in places.values()])
        selected: list[tuple[int, SelectedCall]] = []
        for group in group_calls(ordered, self._is_call):
            if any(genai.PURPOSE in span.attributes for span in group):
                continue
            found = [places[id(span)] for span in group]
            if self._exclude_in_reward and any(place.in_reward for place in found):
                continue
            wanted = [place for place in found if place.agent_name is not None and self._matches(place.node.span)]
            if wanted:
                first = min(wanted, key=lambda place: place.order)
                call = SelectedCall(tuple(group), first.node, first.agent_name or ANY_AGENT)
                selected.append((first.order, call))
        selected.sort(key=lambda one: one[0])
        return [call for _, call in selected]

    def _places(self, tree: TraceTree) -> dict[int, _Place]:
        """Say of each span, by its `id()`, which agent it is of (None for an unwanted one), a parent before others."""
        places: dict[int, _Place] = {}
        outside = ANY_AGENT if self._agent_pattern is None else None
        pending: list[tuple[TraceTree, str | None, bool]] = [(tree, outside, False)]
        while pending:
            node, agent, in_reward = pending.pop()
            places[id(node.span)] = _Place(len(places), node, agent, in_reward)
            if not node.children:
                continue
            name = node.agent_name()
            if name is not None:
                agent = name if self._agent_pattern is None or self._agent_pattern.search(name) else None
            in_reward = in_reward or (self._exclude_in_reward and is_reward_computation(node.span))
            pending.extend((child, agent, in_reward) for child in reversed(node.children))
        return places

    def _is_call(self, span: Span) -> bool:
        if is_call_span(span):
            return True
        return self._name_pattern is not None and self._name_pattern.search(span.name) is not None

    def _matches(self, span: Span) -> bool:
        if self._name_pattern is None or self._name_pattern.search(span.name):
            return True
        named_otherwise = genai.OPERATION_NAME in span.attributes or genai.OPENINFERENCE_KIND in span.attributes
        return named_otherwise and is_call_span(span) and self._name_pattern.search(genai.CHAT_CALL_NAME) is not None


def pattern(option: str, text: str | None) -> re.Pattern[str] | None:
    """Return the regular expression that an option gives; None for none.

    Raises:
        ValueError: When it is not one.
    """
    if text is None:
        return None
    try:
        return re.compile(text)
    except re.error as exc:
        raise ValueError(f"{option}={text!r} is not a regular expression: {exc}") from exc
