"""The methods of a trace tree that scripts for agentlightning 0.3 call."""

from pathlib import Path

import pytest

from lightning_core.adapter.triplet import TracerTraceToTriplet, TraceTree
from lightning_core.testing.adapter import TraceBuilder
from lightning_core.types import Span, Triplet

REWARD = {"agentlightning.reward.0.name": "primary", "agentlightning.reward.0.value": 0.5}


def span(span_id: str, name: str, parent_id: str | None, start: float, end: float, **attributes: object) -> Span:
    return Span.from_attributes(
        attributes={key.replace("__", "."): value for key, value in attributes.items()},
        rollout_id="ro",
        attempt_id="at",
        sequence_id=int(start * 10) + 1,
        trace_id="trace",
        span_id=span_id,
        parent_id=parent_id,
        name=name,
        start_time=start,
        end_time=end,
    )


def call(span_id: str, start: float, tokens: list[int], response_id: str) -> Span:
    return span(
        span_id,
        "openai.chat.completion",
        "agent",
        start,
        start + 0.5,
        prompt_token_ids=tokens,
        response_token_ids=tokens,
        gen_ai__response__id=response_id,
    )


@pytest.fixture
def spans() -> list[Span]:
    reward = span("reward", "agentlightning.annotation", "agent", 5.0, 5.0)
    return [
        span("root", "session", None, 0.0, 9.0),
        span("agent", "agent.node", "root", 1.0, 8.0, agent__name="planner"),
        call("first", 2.0, [1, 2], "resp-1"),
        call("again", 2.6, [9], "resp-1"),
        call("second", 4.0, [3], "resp-2"),
        call("empty", 4.2, [], "resp-3"),
        reward.model_copy(update={"attributes": REWARD}),
    ]


def test_trajectory_has_each_call_once_with_its_reward(spans: list[Span]) -> None:
    tree = TraceTree.from_spans(spans)
    found = tree.to_trajectory(agent_match="planner", _skip_empty_token_spans=True)
    assert [(each.prompt["token_ids"], each.reward) for each in found] == [([1, 2], None), ([3], 0.5)]
    assert {each.metadata["agent_name"] for each in found} == {"planner"}
    assert tree.to_trajectory(agent_match="nobody") == []
    assert tree.to_trajectory(final_reward=1.0)[-1].reward == 1.0


def test_calls_are_found_once_and_rewards_by_their_nodes(spans: list[Span]) -> None:
    tree = TraceTree.from_spans(spans)
    known: set[str] = {"resp-3"}
    found = tree.find_llm_calls(llm_call_match=r"openai\.chat", agent_match=None, existing_llm_call_response_ids=known)
    assert [(node.id, agent) for node, agent in found] == [("first", "planner"), ("second", "planner")]
    assert known == {"resp-1", "resp-2", "resp-3"}
    assert tree.match_rewards("first_sibling", [node for node, _ in found]) == {"second": 0.5}


def test_nodes_are_found_and_shown(spans: list[Span], tmp_path: Path) -> None:
    tree = TraceTree.from_spans(spans)
    reward = tree.find_id("reward")
    assert reward is not None
    assert (reward.is_reward_span(), reward.maybe_reward_dict()) == (True, {"type": "reward", "value": 0.5})
    assert tree.find_id("nothing") is None
    shown = tree.to_json()
    assert [child["span"]["name"] for child in shown["children"]] == ["agent.node"]
    tree.visualize(str(tmp_path / "tree"))
    assert (tmp_path / "tree.dot").read_text().startswith("digraph trace {")


def test_a_tree_of_ones_own_makes_its_own_triplets(spans: list[Span]) -> None:
    class Tree(TraceTree):
        def span_to_triplet(self, span: Span, agent_name: str) -> Triplet:
            triplet = super().span_to_triplet(span, agent_name)
            return triplet.model_copy(update={"metadata": {"name": span.name}})

    found = Tree.from_spans(spans).to_trajectory(_skip_empty_token_spans=True)
    assert [(each.metadata, each.reward) for each in found] == [
        ({"name": "openai.chat.completion"}, None),
        ({"name": "openai.chat.completion"}, 0.5),
    ]


def test_a_drawing_is_written_as_text_and_the_tree_returned(tmp_path: Path) -> None:
    trace = TraceBuilder()
    agent = trace.span('agent "A"', {"agent.name": "solver"}, start=0.0, end=100.0)
    trace.call([1], [2], parent=agent)
    trace.reward(1.0, parent=agent)
    adapter = TracerTraceToTriplet()
    tree = adapter.visualize(trace.spans, filename=tmp_path / "tree")
    assert (tmp_path / "tree.mmd").read_text() == (
        "flowchart TD\n"
        '    n0["span-1 (agent #quot;A#quot;) [solver]"]\n'
        '    n1["span-2 (openai.chat.completion)"]\n'
        '    n2["span-3 (agentlightning.annotation)"]\n'
        "    n0 --> n1\n"
        "    n0 --> n2\n"
    )
    adapter.visualize(trace.spans, tmp_path / "tree", "chat", syntax="graphviz")
    assert (tmp_path / "tree.dot").read_text() == (
        "digraph trace {\n"
        '    n0 [label="span-1 (agent \\"A\\") [solver]"];\n'
        '    n1 [label="span-2 (openai.chat.completion)"];\n'
        "    n0 -> n1;\n"
        "}\n"
    )
    assert adapter.visualize(trace.spans, None).names_tuple() == tree.names_tuple()
    with pytest.raises(ValueError, match="syntax='png' is not known; it is 'mermaid' or 'graphviz'"):
        adapter.visualize(trace.spans, None, syntax="png")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tree.dot", "tree.mmd"]
