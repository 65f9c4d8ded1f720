"""Drawings of traces, and the methods of a `TraceTree` that agentlightning 0.3 had."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from lightning_core.adapter import tree
from lightning_core.adapter.calls import call_of
from lightning_core.adapter.dialects import response_id
from lightning_core.adapter.rewards import RewardMatchPolicy, is_reward_computation, match_in_tree
from lightning_core.adapter.selection import CallSelector
from lightning_core.adapter.triplet import TracerTraceToTriplet, image_urls, triplet_of
from lightning_core.rewards import get_reward_value
from lightning_core.types import Span, Triplet

_LINES = {
    "mermaid": ("flowchart TD", '    n{0}["{1}"]', "    n{0} --> n{1}", "", ".mmd"),
    "graphviz": ("digraph trace {", '    n{0} [label="{1}"];', "    n{0} -> n{1};", "}\n", ".dot"),
}
"""By syntax: its first line, those of a node and of an edge, its end, and the suffix of its files."""
_ESCAPES: dict[str, dict[str, str | int | None]] = {
    # Mermaid has no escapes, but takes HTML's entities in its own spelling.
    "mermaid": {"#": "#35;", '"': "#quot;", "\n": " "},
    "graphviz": {"\\": "\\\\", '"': '\\"', "\n": " "},
}


def draw(
    drawn: tree.TraceTree,
    filename: str | Path | None = "trace_tree",
    interested_span_match: str | None = None,
    *,
    syntax: Literal["mermaid", "graphviz"] = "mermaid",
) -> str:
    """Draw a tree as text: a Mermaid flowchart (`.mmd`) or a Graphviz digraph (`.dot`).

    Args:
        drawn: The tree.
        filename: Where to, without the suffix; None to write nothing. A file of that name is replaced.
        interested_span_match: A regular expression; only spans whose name it matches, and those above, are drawn.
        syntax: The language of the text.

    Returns:
        The text.

    Raises:
        ValueError: When `syntax` is neither of the two.
    """
    if syntax not in _LINES:
        raise ValueError(f"syntax={syntax!r} is not known; it is 'mermaid' or 'graphviz'")
    first, of_node, of_edge, end, suffix = _LINES[syntax]
    walked = drawn.traverse()
    parents = {id(child): node for node in walked for child in node.children}
    wanted = re.compile(interested_span_match or "")
    kept = {id(node) for node in walked if wanted.search(node.span.name)}
    for node in reversed(walked):
        if id(node) in kept and id(node) in parents:
            kept.add(id(parents[id(node)]))
    places = {id(node): place for place, node in enumerate(node for node in walked if id(node) in kept)}
    nodes, edges = [], []
    for node in walked:
        if id(node) in kept:
            agent = node.agent_name()
            label = f"{node.id[-8:]} ({node.span.name})" + (f" [{agent}]" if agent is not None else "")
            nodes.append(of_node.format(places[id(node)], label.translate(str.maketrans(_ESCAPES[syntax]))))
            if id(node) in parents:
                edges.append(of_edge.format(places[id(parents[id(node)])], places[id(node)]))
    text = "\n".join([first, *nodes, *edges, end])
    if filename is not None:
        Path(f"{filename}{suffix}").write_text(text, encoding="utf-8")
    return text


class TraceTree(tree.TraceTree):
    """A tree as `lightning_core.adapter.triplet` of 0.3 had it: it reads itself."""

    def find_id(self, id: str) -> tree.TraceTree | None:
        """Return the first node with this id, at or below this one; None for none."""
        return next((node for node in self.traverse() if node.id == id), None)

    def add_child(self, child: tree.TraceTree) -> None:
        """Put a node directly below this one, as the last."""
        self.children.append(child)

    def to_json(self) -> dict[str, Any]:
        """Return the node and what is below it as plain data."""
        made: dict[int, dict[str, Any]] = {}
        for node in reversed(self.traverse()):
            below = [made[id(child)] for child in node.children]
            made[id(node)] = {"id": node.id, "span": node.span.model_dump(), "children": below}
        return made[id(self)]

    def visualize(self, filename: str, interested_span_match: str | None = None) -> None:
        """Write a drawing, as the text of a Graphviz digraph, to `filename` with the suffix `.dot`."""
        draw(self, filename, interested_span_match, syntax="graphviz")

    def maybe_reward_dict(self) -> dict[str, Any]:
        """Return `{"type": "reward", "value": ...}` for a reward span, an empty dict for another."""
        value = get_reward_value(self.span)
        return {} if value is None else {"type": "reward", "value": value}

    def is_reward_span(self) -> bool:
        """Whether the span is a reward, or lies around the computation of one."""
        return is_reward_computation(self.span)

    def find_llm_calls(
        self,
        *,
        llm_call_match: str,
        agent_match: str | None,
        within_matching_subtree: str | None = None,
        within_reward: bool | None = None,
        within_llm_call: bool | None = None,
        existing_llm_call_response_ids: set[str] | None = None,
    ) -> list[tuple[tree.TraceTree, str]]:
        """Return the nodes of model calls with the name of their agent, each call once.

        Args:
            llm_call_match: A regular expression, searched in span names.
            agent_match: A regular expression, searched in the name of the innermost agent around; None for any.
            within_matching_subtree: Has no effect; `agent_match` decides.
            within_reward: None to take calls within the computation of a reward, too.
            within_llm_call: Has no effect; a call that several spans recorded is one.
            existing_llm_call_response_ids: Calls with one of these are left out; those that are found are added.
        """
        selector = CallSelector(
            repair_hierarchy=False,
            llm_call_match=llm_call_match,
            agent_match=agent_match,
            exclude_llm_call_in_reward=within_reward is not None,
        )
        known = set() if existing_llm_call_response_ids is None else existing_llm_call_response_ids
        calls: list[tuple[tree.TraceTree, str]] = []
        for call in selector.select(self):
            ids = {given for span in call.spans if (given := response_id(span)) is not None}
            if not ids & known:
                calls.append((call.node, call.agent_name))
            known |= ids
        return calls

    def match_rewards(self, reward_match: str, llm_calls: Sequence[tree.TraceTree]) -> dict[str, float | None]:
        """Return the reward of each call that has one, by the id of its node."""
        numbers = {id(node): number for number, node in enumerate(llm_calls)}
        matches = match_in_tree(RewardMatchPolicy(reward_match), self, numbers)
        return {llm_calls[number].id: rewards[0].value for number, rewards in matches.items()}

    def extract_prompt_image_urls(self, prompt_raw_content: Any) -> list[str]:
        """Return the URLs of the images in recorded messages."""
        return image_urls(prompt_raw_content)

    def span_to_triplet(self, span: Span, agent_name: str) -> Triplet:
        """Return the triplet of a model call's span, without a reward."""
        return triplet_of(call_of([span], 0), agent_name)

    def to_trajectory(
        self,
        llm_call_match: str = r"openai\.chat\.completion",
        agent_match: str | None = None,
        exclude_llm_call_in_reward: bool = True,
        dedup_llm_call: bool = True,
        reward_match: RewardMatchPolicy | str = "first_occurrence",
        final_reward: float | None = None,
        _skip_empty_token_spans: bool = False,
    ) -> list[Triplet]:
        """Return the triplets of the model calls at or below this node; see `TracerTraceToTriplet`.

        Args:
            llm_call_match: See `TracerTraceToTriplet`.
            agent_match: See `TracerTraceToTriplet`.
            exclude_llm_call_in_reward: See `TracerTraceToTriplet`.
            dedup_llm_call: Has no effect: a call that several spans recorded is one.
            reward_match: See `TracerTraceToTriplet`.
            final_reward: The reward of the last call, in the place of its own; None to leave that.
        """
        adapter = TracerTraceToTriplet(
            repair_hierarchy=False,
            llm_call_match=llm_call_match,
            agent_match=agent_match,
            exclude_llm_call_in_reward=exclude_llm_call_in_reward,
            reward_match=reward_match,
            _skip_empty_token_spans=_skip_empty_token_spans,
        )
        makes = type(self).span_to_triplet is not TraceTree.span_to_triplet
        triplets = adapter.adapt_tree(self, self.span_to_triplet if makes else None)
        if final_reward is not None and triplets:
            triplets[-1] = triplets[-1].model_copy(update={"reward": final_reward})
        return triplets
