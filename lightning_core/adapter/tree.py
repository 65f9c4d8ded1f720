"""The spans of an attempt as a tree: what lies within what."""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from lightning_core.types import Span


def in_order(spans: Sequence[Span]) -> list[Span]:
    """Return the spans in the order of the attempt, each span id once.

    The store's `sequence_id` decides, because clocks of different machines disagree; where it is the same, the start
    time, and then the order given. Of two spans with one id the first stays, as in the store.
    """
    ordered = sorted(spans, key=place_of)
    once = {span.span_id: span for span in reversed(ordered)}
    if len(once) == len(ordered):
        return ordered
    # Spans that were recorded without an identity share the id zero; they are not one span.
    return [span for span in ordered if once[span.span_id] is span or not span.span_id.strip("0")]


def place_of(span: Span) -> tuple[int, float]:
    """Return what the spans of an attempt are sorted by."""
    return span.sequence_id, span.start_time if span.start_time is not None else float("-inf")


Interval = tuple[float, float]
"""When something began and ended."""

_Best = tuple[float, int]


def shortest_enclosing(intervals: Sequence[Interval]) -> list[int | None]:
    """Find for each interval the shortest longer one that begins no later and ends no earlier.

    Returns:
        For each interval the position of another one, the first of equally short ones; None where there is none.
    """
    order = sorted(range(len(intervals)), key=lambda place: (intervals[place][0], -intervals[place][1], place))
    found: list[int | None] = [None] * len(intervals)
    # Of what has begun: ends in ascending order, and for each the shortest that ends there or later. What is neither
    # shorter nor ends later than another is left out, so the first entry at an end or after it is the answer.
    ends: list[float] = []
    shortest: list[_Best] = []
    for (start, end), equal in groupby(order, key=lambda place: intervals[place]):
        places = list(equal)  # equal intervals do not enclose each other
        at = bisect_left(ends, end)
        for place in places:
            found[place] = shortest[at][1] if at < len(ends) else None
        entry = (end - start, places[0])
        if at < len(ends) and shortest[at] <= entry:
            continue
        first = at
        while first and shortest[first - 1] >= entry:
            first -= 1
        last = at + (at < len(ends) and ends[at] == end)
        ends[first:last], shortest[first:last] = [end], [entry]
    return found


_AGENT_NAME_ATTRIBUTES = (
    "agent.name",
    "gen_ai.agent.name",
    "recipient_agent_type",
    "langchain.chain.type",
    "executor.id",
)
"""Under one of these, agent frameworks say whose span it is."""


class TraceTree:
    """A span and what lies within it.

    Args:
        id: The span's id.
        span: The span.
        children: What lies directly within it, in the order of the attempt.
    """

    def __init__(self, id: str, span: Span, children: "list[TraceTree] | None" = None) -> None:
        self.id = id
        self.span = span
        self.children = children if children is not None else []

    @classmethod
    def from_spans(cls, spans: Sequence[Span]) -> "TraceTree":
        """Make the tree of an attempt's spans.

        A parent that is not among the spans gets a virtual span over its children. Where there are several roots,
        they lie in a virtual one. Spans whose parents form a circle hang on one of them, which is a root.

        Raises:
            ValueError: When there is no span.
        """
        ordered = in_order(spans)
        if not ordered:
            raise ValueError("there is no span to make a tree of; give the spans of an attempt")
        nodes = [cls(span.span_id, span) for span in ordered]
        by_id = {node.id: node for node in reversed(nodes)}
        missing: dict[str, list[TraceTree]] = {}
        roots: list[TraceTree] = []
        parents: dict[int, TraceTree] = {}
        for node in nodes:
            parent_id = node.span.parent_id
            if parent_id is None:
                roots.append(node)
            elif parent_id in by_id:
                parents[id(node)] = by_id[parent_id]
            else:
                missing.setdefault(parent_id, []).append(node)
        for node in _in_circles(nodes, parents):
            del parents[id(node)]
            roots.append(node)
        for node in nodes:
            if id(node) in parents:
                parents[id(node)].children.append(node)
        roots += [
            cls(parent_id, _virtual_span(parent_id, children), children) for parent_id, children in missing.items()
        ]
        if len(roots) == 1:
            return roots[0]
        return cls("virtual-root", _virtual_span("virtual-root", roots, name="virtual-root"), roots)

    @property
    def start_time(self) -> float | None:
        """When the span began, in seconds since the epoch."""
        return self.span.start_time

    @property
    def end_time(self) -> float | None:
        """When the span ended, in seconds since the epoch."""
        return self.span.end_time

    def traverse(self) -> "list[TraceTree]":
        """Return this node and all below it, a parent before its children."""
        nodes: list[TraceTree] = []
        pending = [self]
        while pending:  # without recursion: traces may be thousands of spans deep
            nodes.append(node := pending.pop())
            pending.extend(reversed(node.children))
        return nodes

    def names_tuple(self) -> tuple[str, list[Any]]:
        """Return the span's name, with its agent's in brackets, and the same of each child."""
        named: dict[int, tuple[str, list[Any]]] = {}
        for node in reversed(self.traverse()):
            agent = node.agent_name()
            name = node.span.name if agent is None else f"{node.span.name} [{agent}]"
            named[id(node)] = (name, [named[id(child)] for child in node.children])
        return named[id(self)]

    def agent_name(self) -> str | None:
        """Return the name of the agent whose span this is, as its framework gives it; None for other spans."""
        attributes = self.span.attributes
        for name in _AGENT_NAME_ATTRIBUTES:
            if attributes.get(name) is not None:
                return str(attributes[name])
        found = None
        if attributes.get("agentops.span.kind") == "agent":
            found = attributes.get("operation.name")
        elif attributes.get("type") == "agent":
            found = attributes.get("agentlightning.operation.input.name")
        elif self.span.name.startswith("langchain.Chain."):
            found = attributes.get("lc_name")
        return None if found is None else str(found)

    def repair_hierarchy(self) -> None:
        """Move each span that floats under the root into the shortest span that was open all the while.

        Where several tracers record one attempt, the spans of one do not know those of the other: a model call lies
        beside the agent that made it. The root is the first node that has several children; only its own children
        are moved. Spans without times stay. Takes time n log n for n spans.
        """
        root = self
        while len(root.children) == 1:
            root = root.children[0]
        if not root.children:
            return
        new_parents = _new_parents(root.children, root.traverse()[1:])
        parents = {id(child): node for node in root.traverse() for child in node.children}
        for child, parent in new_parents:
            parents[id(child)] = parent
        floating = [child for child, _ in new_parents]
        # A span can outlast its parent, and so two spans can each be in a span below the other one.
        in_circles = {id(node) for node in _in_circles(floating, parents)}
        for child, parent in new_parents:
            if id(child) not in in_circles:
                parent.children.append(child)
        moved = {id(child) for child in floating} - in_circles
        root.children = [child for child in root.children if id(child) not in moved]


def _virtual_span(span_id: str, children: Sequence[TraceTree], name: str | None = None) -> Span:
    first = children[0].span
    starts = [child.start_time for child in children if child.start_time is not None]
    ends = [child.end_time for child in children if child.end_time is not None]
    return Span.from_attributes(
        attributes={},
        rollout_id=first.rollout_id,
        attempt_id=first.attempt_id,
        sequence_id=first.sequence_id,
        trace_id=first.trace_id,
        span_id=span_id,
        name=name,
        start_time=min(starts, default=None),
        end_time=max(ends, default=None),
    )


def _in_circles(nodes: Sequence[TraceTree], parents: dict[int, TraceTree]) -> list[TraceTree]:
    """Return one of the nodes for each circle of parents."""
    given = {id(node) for node in nodes}
    seen: dict[int, int] = {}
    found: list[TraceTree] = []
    for number, start in enumerate(nodes):
        node: TraceTree | None = start
        while node is not None and id(node) not in seen:
            seen[id(node)] = number
            node = parents.get(id(node))
        if node is not None and seen[id(node)] == number:
            while id(node) not in given:
                node = parents[id(node)]
            found.append(node)
    return found


def _new_parents(floating: Sequence[TraceTree], candidates: Sequence[TraceTree]) -> list[tuple[TraceTree, TraceTree]]:
    """Pair each floating node, which is a candidate too, with the shortest candidate around it, if there is one."""
    moving = {id(node) for node in floating}
    nodes: list[TraceTree] = []
    intervals: list[tuple[float, float]] = []
    for node in candidates:
        if node.start_time is not None and node.end_time is not None:
            nodes.append(node)
            intervals.append((node.start_time, node.end_time))
    return [
        (node, nodes[place])
        for node, place in zip(nodes, shortest_enclosing(intervals), strict=True)
        if place is not None and id(node) in moving
    ]
