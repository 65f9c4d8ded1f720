import json

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from lightning_core.adapter import RewardMatchPolicy, TracerTraceToTriplet
from lightning_core.testing.adapter import TraceBuilder
from lightning_core.types import Triplet


def triplets(trace: TraceBuilder, **options) -> list[Triplet]:
    return TracerTraceToTriplet(**options).adapt(trace.spans)


def test_a_call_becomes_a_triplet_with_tokens_contents_and_metadata():
    trace = TraceBuilder()
    agent = trace.span("agent", {"agent.name": "solver"}, start=0.0, end=1000.0)
    trace.call([1, 2], [3], parent=agent, attributes={"gen_ai.response.model": "small-1"})
    trace.reward(0.5, parent=agent)
    (triplet,) = triplets(trace)
    assert triplet == Triplet(
        prompt={
            "token_ids": [1, 2],
            "raw_content": [{"role": "user", "content": "What is to be done?"}],
            "image_urls": [],
        },
        response={
            "token_ids": [3],
            "raw_content": [{"role": "assistant", "content": "This.", "finish_reason": "stop"}],
        },
        reward=0.5,
        metadata={
            "request": {"model": "small"},
            "response": {"id": "chatcmpl-2", "model": "small-1"},
            "response_id": "chatcmpl-2",
            "agent_name": "solver",
        },
    )


def test_a_call_without_tokens_has_empty_lists_and_can_be_left_out():
    trace = TraceBuilder()
    trace.call()
    trace.call([1], [2])
    assert [triplet.prompt["token_ids"] for triplet in triplets(trace)] == [[], [1]]
    assert len(triplets(trace, _skip_empty_token_spans=True)) == 1


def test_a_failed_call_says_so_in_its_metadata():
    trace = TraceBuilder()
    trace.call(error="429 too many requests")
    (triplet,) = triplets(trace)
    assert triplet.metadata["error"] == "429 too many requests"
    assert triplet.response == {"token_ids": [], "raw_content": None}


def test_log_probabilities_are_given_as_they_were_recorded():
    content = [{"token": "a", "logprob": -0.5, "top_logprobs": []}]
    trace = TraceBuilder()
    trace.call([1], [2], attributes={"logprobs.content": json.dumps(content)})
    trace.call([1], [2], attributes={"response_logprobs": [-0.25]})
    assert [triplet.response["logprobs"] for triplet in triplets(trace)] == [content, [-0.25]]


def test_images_of_the_prompt_are_listed():
    parts = [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": "file:///a.png"}}]
    trace = TraceBuilder()
    trace.call([1], [2], attributes={"gen_ai.prompt.0.content": json.dumps(parts)})
    trace.call(
        [1], [2], attributes={"gen_ai.prompt.0.content": json.dumps(parts), "gen_ai.prompt.prompt_filter_results": "[]"}
    )
    message = {"role": "user", "parts": [{"type": "uri", "modality": "image", "uri": "file:///a.png"}]}
    trace.span("chat", {"gen_ai.operation.name": "chat", "gen_ai.input.messages": json.dumps([message])})
    assert [triplet.prompt["image_urls"] for triplet in triplets(trace)] == [["file:///a.png"]] * 3


def test_a_call_that_floats_beside_its_agent_is_found_only_after_the_repair():
    trace = TraceBuilder()
    root = trace.span("session", start=0.0, end=100.0)
    agent = trace.span("agent", {"agent.name": "planner"}, parent=root, start=1.0, end=50.0)
    trace.call([1], [2], parent=root, start=2.0)
    trace.reward(0.25, parent=agent, start=10.0)
    (triplet,) = triplets(trace, agent_match="^plan")
    assert (triplet.reward, triplet.metadata["agent_name"]) == (0.25, "planner")
    assert triplets(trace, agent_match="^plan", repair_hierarchy=False) == []
    assert triplets(trace, agent_match="other") == []


@pytest.mark.parametrize(
    "attributes",
    [
        {"agent.name": "solver"},
        {"gen_ai.agent.name": "solver"},
        {"agentops.span.kind": "agent", "operation.name": "solver"},
        {"recipient_agent_type": "solver"},
        {"langchain.chain.type": "solver"},
        {"executor.id": "solver"},
        {"type": "agent", "agentlightning.operation.input.name": "solver"},
        {"lc_name": "solver"},
    ],
)
def test_the_agents_name_is_read_as_its_framework_gives_it(attributes):
    trace = TraceBuilder()
    agent = trace.span("langchain.Chain.run", attributes, start=0.0, end=100.0)
    trace.call([1], [2], parent=agent)
    assert [triplet.metadata["agent_name"] for triplet in triplets(trace)] == ["solver"]


def test_a_call_within_the_computation_of_a_reward_is_left_out_unless_wanted():
    trace = TraceBuilder()
    trace.call([1], [2])
    grading = trace.span("agentlightning.operation", {"agentlightning.operation.name": "agentlightning.reward"})
    trace.call([3], [4], parent=grading)
    assert [triplet.prompt["token_ids"] for triplet in triplets(trace)] == [[1]]
    assert len(triplets(trace, exclude_llm_call_in_reward=False)) == 2


def test_calls_are_matched_by_span_name_and_those_of_the_genai_conventions_as_chat_calls_too():
    trace = TraceBuilder()
    trace.span("chat small", {"gen_ai.operation.name": "chat", "prompt_token_ids": [1], "response_token_ids": [2]})
    trace.span("chat_model.llm", {"prompt_token_ids": [3], "response_token_ids": [4]})
    trace.span("invoke_agent", {"gen_ai.operation.name": "invoke_agent"})
    assert [triplet.prompt["token_ids"] for triplet in triplets(trace)] == [[1]]
    both = triplets(trace, llm_call_match=r"^chat")
    assert [triplet.prompt["token_ids"] for triplet in both] == [[1], [3]]


def test_each_reward_is_of_the_latest_call_that_had_ended_and_has_none():
    trace = TraceBuilder()
    trace.call([1], [1], start=0.0, end=1.0)
    trace.call([2], [2], start=2.0, end=3.0)
    trace.call([3], [3], start=4.0, end=9.0)
    trace.reward(0.1, start=5.0)
    trace.reward(0.2, start=6.0)
    trace.reward(0.3, start=9.0)
    trace.reward(0.4, start=10.0)
    assert [triplet.reward for triplet in triplets(trace)] == [0.2, 0.1, 0.3]


def test_by_siblings_a_reward_is_of_a_call_under_the_same_parent():
    trace = TraceBuilder()
    one = trace.span("step", start=0.0, end=100.0)
    other = trace.span("step", start=0.0, end=100.0)
    trace.call([1], [1], parent=one, start=1.0)
    trace.call([2], [2], parent=other, start=3.0)
    trace.reward(0.5, parent=one, start=5.0)
    options = {"repair_hierarchy": False}
    by_sibling = triplets(trace, reward_match=RewardMatchPolicy.FIRST_SIBLING, **options)
    assert [triplet.reward for triplet in by_sibling] == [0.5, None]
    assert [triplet.reward for triplet in triplets(trace, reward_match="first_occurrence", **options)] == [None, 0.5]


def test_without_times_the_order_of_the_spans_decides_about_rewards():
    trace = TraceBuilder()
    for number in (1, 2):
        trace.call([number], [number], start_time=None, end_time=None)
        trace.reward(float(number), start_time=None, end_time=None)
    assert [triplet.reward for triplet in triplets(trace)] == [1.0, 2.0]


def test_an_unknown_policy_or_pattern_is_refused_with_what_is_allowed():
    with pytest.raises(ValueError, match=r"'last' is not known; it is one of 'first_sibling', 'first_occurrence'"):
        TracerTraceToTriplet(reward_match="last")
    with pytest.raises(ValueError, match=r"llm_call_match='\[' is not a regular expression"):
        TracerTraceToTriplet(llm_call_match="[")


def test_opentelemetrys_own_spans_are_taken():
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("test")
    with tracer.start_as_current_span("session"):
        with tracer.start_as_current_span("openai.chat.completion") as call:
            call.set_attributes({"prompt_token_ids": [1, 2], "response_token_ids": [3]})
        with tracer.start_as_current_span("agentlightning.annotation") as reward:
            reward.set_attributes({"agentlightning.reward.0.name": "primary", "agentlightning.reward.0.value": 1.0})
    provider.shutdown()
    (triplet,) = TracerTraceToTriplet().adapt(exporter.get_finished_spans())
    assert (list(triplet.prompt["token_ids"]), triplet.reward) == ([1, 2], 1.0)
