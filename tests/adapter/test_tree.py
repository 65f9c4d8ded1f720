import pytest
from hypothesis import given, strategies

from lightning_core.adapter import TraceTree
from lightning_core.adapter.tree import shortest_enclosing
from lightning_core.testing.adapter import TraceBuilder


def names(tree: TraceTree):
    agent = tree.agent_name()
    name = tree.span.name if agent is None else f"{tree.span.name} [{agent}]"
    return name, [names(child) for child in tree.children]


def test_spans_form_a_tree_with_the_agents_names():
    trace = TraceBuilder()
    root = trace.span("session", {"agent.name": "solver"})
    trace.span("step", parent=trace.span("stage", parent=root))
    assert names(TraceTree.from_spans(trace.spans[::-1])) == (
        "session [solver]",
        [("stage", [("step", [])])],
    )


def test_several_roots_lie_in_a_virtual_one_over_their_times():
    trace = TraceBuilder()
    trace.span("one", start=1.0, end=2.0)
    trace.span("two", start=5.0, end=9.0)
    tree = TraceTree.from_spans(trace.spans)
    assert names(tree) == ("virtual-root", [("one", []), ("two", [])])
    assert (tree.id, tree.start_time, tree.end_time) == ("virtual-root", 1.0, 9.0)


def test_a_lost_parent_is_replaced_by_a_virtual_span():
    trace = TraceBuilder()
    trace.span("one", parent="lost")
    tree = TraceTree.from_spans(trace.spans)
    assert (tree.id, tree.span.name) == ("lost", "agentlightning.virtual")
    assert [child.span.name for child in tree.children] == ["one"]


def test_parents_that_form_a_circle_lose_no_span():
    trace = TraceBuilder()
    trace.span("a", span_id="a", parent="b")
    trace.span("b", span_id="b", parent="a")
    trace.span("c", parent="c", span_id="c")
    tree = TraceTree.from_spans(trace.spans)
    assert sorted(node.id for node in tree.traverse()) == ["a", "b", "c", "virtual-root"]


def test_a_tree_needs_a_span():
    with pytest.raises(ValueError, match="there is no span to make a tree of"):
        TraceTree.from_spans([])


def test_a_floating_span_moves_into_the_shortest_that_was_open_all_the_while():
    trace = TraceBuilder()
    root = trace.span("root", start=0.0, end=100.0)
    agent = trace.span("agent", parent=root, start=1.0, end=90.0)
    trace.span("tool", parent=agent, start=2.0, end=20.0)
    trace.span("call", parent=root, start=3.0, end=4.0)
    trace.span("late", parent=root, start=50.0, end=60.0)
    trace.span("apart", parent=root, start=95.0, end=96.0)
    tree = TraceTree.from_spans(trace.spans)
    tree.repair_hierarchy()
    assert names(tree) == (
        "root",
        [("agent", [("tool", [("call", [])]), ("late", [])]), ("apart", [])],
    )


def test_a_repair_looks_below_roots_with_one_child_and_leaves_spans_without_times():
    trace = TraceBuilder()
    outer = trace.span("outer", start=0.0, end=100.0)
    root = trace.span("root", parent=outer, start=0.0, end=99.0)
    trace.span("agent", parent=root, start=1.0, end=90.0)
    trace.span("call", parent=root, start=2.0, end=3.0)
    trace.span("odd", parent=root, start_time=None, end_time=None)
    tree = TraceTree.from_spans(trace.spans)
    tree.repair_hierarchy()
    assert names(tree) == ("outer", [("root", [("agent", [("call", [])]), ("odd", [])])])


def test_a_span_that_its_own_child_outlasts_stays_where_it_is():
    trace = TraceBuilder()
    root = trace.span("root", start=0.0, end=100.0)
    short = trace.span("short", parent=root, start=1.0, end=2.0)
    trace.span("long", parent=short, start=1.0, end=50.0)
    trace.span("other", parent=root, start=60.0, end=70.0)
    tree = TraceTree.from_spans(trace.spans)
    tree.repair_hierarchy()
    assert names(tree) == ("root", [("short", [("long", [])]), ("other", [])])


def test_a_trace_may_be_thousands_of_spans_deep():
    trace = TraceBuilder()
    parent = trace.span("span", start=0.0, end=1e6)
    for number in range(5_000):
        parent = trace.span("span", parent=parent, start=float(number), end=1e6 - number)
    tree = TraceTree.from_spans(trace.spans)
    tree.repair_hierarchy()
    assert len(tree.traverse()) == 5_001


times = strategies.integers(0, 6).map(float)
intervals = strategies.lists(strategies.tuples(times, times).map(lambda pair: (min(pair), max(pair))), max_size=12)


@given(intervals)
def test_the_shortest_enclosing_interval_is_that_of_a_plain_search(given_intervals):
    expected = []
    for start, end in given_intervals:
        around = [
            (there[1] - there[0], place)
            for place, there in enumerate(given_intervals)
            if there[0] <= start and there[1] >= end and there != (start, end)
        ]
        expected.append(min(around, default=(0.0, None))[1])
    assert shortest_enclosing(given_intervals) == expected
