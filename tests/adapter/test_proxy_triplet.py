from lightning_core.adapter import LlmProxyTraceToTriplet
from lightning_core.testing.adapter import TraceBuilder
from lightning_core.types import Triplet


def raw(trace: TraceBuilder, prompt: list[int], response: list[int], id: str, **more):
    """Add the span of a proxy."""
    return trace.call(prompt, response, attributes={"gen_ai.response.id": id}, **more)


def triplets(trace: TraceBuilder) -> list[Triplet]:
    return LlmProxyTraceToTriplet().adapt(trace.spans)


def test_a_call_becomes_a_triplet_of_its_tokens():
    trace = TraceBuilder()
    raw(trace, [1, 2], [3], "chatcmpl-a")
    trace.reward(0.5)
    assert triplets(trace) == [
        Triplet(
            prompt={"token_ids": [1, 2]},
            response={"token_ids": [3]},
            reward=0.5,
            metadata={"response_id": "chatcmpl-a"},
        )
    ]


def test_only_the_sequence_decides_never_the_clock():
    trace = TraceBuilder()
    raw(trace, [1], [2], "a", start=900.0)
    raw(trace, [3], [4], "b", start=5.0)
    trace.reward(0.5, start=0.0)
    assert [(triplet.prompt["token_ids"], triplet.reward) for triplet in triplets(trace)] == [([1], None), ([3], 0.5)]


def test_a_reward_is_of_the_latest_call_before_it_that_has_none():
    trace = TraceBuilder()
    trace.reward(9.0)
    raw(trace, [1], [1], "a")
    raw(trace, [2], [2], "b")
    trace.reward(8.0, sequence_id=2)
    trace.reward(0.1)
    raw(trace, [3], [3], "c")
    trace.reward(0.2)
    trace.reward(0.3)
    assert [triplet.reward for triplet in triplets(trace)] == [0.3, 0.1, 0.2]


def test_one_id_is_one_call_and_a_call_without_tokens_none():
    trace = TraceBuilder()
    raw(trace, [1], [2], "a")
    raw(trace, [1], [2], "a")
    raw(trace, [1], [], "b")
    trace.call(attributes={"gen_ai.response.id": "c"})
    trace.call([5], [])
    assert [triplet.metadata["response_id"] for triplet in triplets(trace)] == ["a"]


def test_what_an_instrumentor_recorded_beside_the_proxy_changes_nothing():
    alone, both = TraceBuilder(), TraceBuilder()
    for trace in (alone, both):
        raw(trace, [1], [2], "a")
        trace.reward(0.5)
    both.call(attributes={"gen_ai.response.id": "a"})
    assert triplets(both) == triplets(alone)
