"""Spans of whatever names under those of OpenTelemetry's GenAI conventions; and OpenInference's are read."""

import json
from typing import Any

import pytest

from lightning_core.adapter import read_model_calls, read_usage
from lightning_core.adapter.current_names import with_current_names
from lightning_core.adapter.usage import Usage
from lightning_core.types import Span

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOL = {"name": "weather", "description": "Of a city.", "parameters": SCHEMA}

OPENINFERENCE = {
    "openinference.span.kind": "LLM",
    "llm.provider": "OpenAI",
    "llm.model_name": "small",
    "llm.invocation_parameters": '{"temperature": 0.5, "stop": "END"}',
    "llm.input_messages.0.message.role": "system",
    "llm.input_messages.0.message.content": "Be brief.",
    "llm.input_messages.1.message.role": "user",
    "llm.input_messages.1.message.contents.0.message_content.type": "text",
    "llm.input_messages.1.message.contents.0.message_content.text": "Where is this?",
    "llm.input_messages.1.message.contents.1.message_content.type": "image",
    "llm.input_messages.1.message.contents.1.message_content.image.image.url": "https://x/y.png",
    "llm.output_messages.0.message.role": "assistant",
    "llm.output_messages.0.message.tool_calls.0.tool_call.id": "c1",
    "llm.output_messages.0.message.tool_calls.0.tool_call.function.name": "weather",
    "llm.output_messages.0.message.tool_calls.0.tool_call.function.arguments": '{"city": "Bern"}',
    "llm.tools.0.tool.json_schema": json.dumps({"type": "function", "function": TOOL}),
    "llm.finish_reason": "tool_calls",
    "llm.token_count.prompt": 20,
    "llm.token_count.completion": 4,
    "llm.cost.total": 0.25,
}
TRACELOOP = {
    "gen_ai.system": "OpenAI",
    "llm.request.type": "chat",
    "gen_ai.request.model": "small",
    "gen_ai.prompt.0.role": "user",
    "gen_ai.prompt.0.content": "Hello",
    "gen_ai.completion.0.role": "assistant",
    "gen_ai.completion.0.content": "Hi",
    "gen_ai.completion.0.finish_reason": "stop",
    "gen_ai.usage.prompt_tokens": 3,
    "gen_ai.usage.completion_tokens": 1,
    "my.own": "kept",
}


def span(attributes: dict[str, Any], name: str = "a span") -> Span:
    return Span.from_attributes(attributes=attributes, name=name, start_time=1.0, end_time=2.0)


def test_a_call_of_openinference_is_read() -> None:
    recorded = span(OPENINFERENCE)
    [call] = read_model_calls([recorded])
    assert (call.model, call.finish_reason) == ("small", "tool_calls")
    picture = [
        {"type": "text", "text": "Where is this?"},
        {"type": "image_url", "image_url": {"url": "https://x/y.png"}},
    ]
    assert call.messages == ({"role": "system", "content": "Be brief."}, {"role": "user", "content": picture})
    function = {"name": "weather", "arguments": '{"city": "Bern"}'}
    tool_call = {"id": "c1", "type": "function", "function": function}
    assert call.answers == ({"role": "assistant", "content": None, "tool_calls": [tool_call]},)
    assert call.tools == ({"type": "function", "function": TOOL},)
    assert read_usage([recorded]) == Usage(1, 20, 4, 0.25)
    assert not read_model_calls([span({**OPENINFERENCE, "openinference.span.kind": "CHAIN"})])


def test_a_call_says_the_same_under_the_current_names() -> None:
    for attributes in (OPENINFERENCE, TRACELOOP):
        recorded = span(attributes)
        current = with_current_names(recorded)
        assert current.name == "chat small"
        former = {name for name in current.attributes if name.startswith(("llm.", "gen_ai.prompt", "openinference."))}
        assert former == attributes.keys() & {"llm.cost.total"}  # the conventions have no name for it
        [before], [after] = read_model_calls([recorded]), read_model_calls([current])
        assert (after.messages, after.answers, after.tools) == (before.messages, before.answers, before.tools)
        assert (after.model, after.finish_reason) == (before.model, before.finish_reason)
        assert recorded.attributes == attributes
        assert with_current_names(current) == current
    assert current.attributes == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "small",
        "gen_ai.response.model": "small",
        "gen_ai.response.finish_reasons": ["stop"],
        "gen_ai.usage.input_tokens": 3,
        "gen_ai.usage.output_tokens": 1,
        "gen_ai.input.messages": '[{"role": "user", "parts": [{"type": "text", "content": "Hello"}]}]',
        "gen_ai.output.messages": '[{"role": "assistant", "parts": [{"type": "text", "content": "Hi"}], '
        '"finish_reason": "stop"}]',
        "my.own": "kept",
    }


def test_a_picture_may_be_its_url_alone() -> None:
    said = json.dumps([{"role": "user", "content": [{"type": "image_url", "image_url": "https://x/y.png"}]}])
    current = with_current_names(span({"gen_ai.operation.name": "chat", "gen_ai.prompt": said}))
    [message] = json.loads(current.attributes["gen_ai.input.messages"])
    assert message["parts"] == [{"type": "uri", "modality": "image", "uri": "https://x/y.png"}]


def test_request_parameters_of_openinference_have_names_of_their_own() -> None:
    attributes = with_current_names(span(OPENINFERENCE)).attributes
    assert attributes["gen_ai.request.temperature"] == 0.5
    assert attributes["gen_ai.request.stop_sequences"] == ["END"]


def test_tools_are_executed_and_agents_invoked() -> None:
    executed = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "weather",
        "gen_ai.tool.call.arguments": '{"city": "Bern"}',
        "gen_ai.tool.call.result": "rain",
    }
    agentops = {"tool.name": "weather", "tool.parameters": '{"city": "Bern"}', "tool.result": "rain"}
    openinference = {"openinference.span.kind": "TOOL", "tool.name": "weather"}
    openinference |= {"tool.parameters": "{}", "input.value": '{"city": "Bern"}', "output.value": "rain"}
    operation = {"agentlightning.operation.name": "weather", "kind": "tool"}
    operation |= {"agentlightning.operation.input.city": "Bern", "agentlightning.operation.output": "rain"}
    traceloop = {"traceloop.span.kind": "tool", "traceloop.entity.name": "weather"}
    traceloop |= {"traceloop.entity.input": '{"city": "Bern"}', "traceloop.entity.output": "rain"}
    for attributes in (agentops, openinference, operation, traceloop):
        current = with_current_names(span(attributes))
        assert current.name == "execute_tool weather"
        assert executed.items() <= current.attributes.items()
    invoked = with_current_names(span({"agent.name": "writer"}))
    assert invoked.name == "invoke_agent writer"
    assert invoked.attributes["gen_ai.operation.name"] == "invoke_agent"


@pytest.mark.parametrize(("result", "told"), [(0, "0"), (False, "false"), ("", "")])
def test_a_tool_may_return_nothing_much(result: Any, told: str) -> None:
    current = with_current_names(span({"tool.name": "count", "tool.result": result}))
    assert current.attributes["gen_ai.tool.call.result"] == told


def test_messages_that_cannot_be_read_keep_their_names() -> None:
    said = {"gen_ai.prompt.0.content": "of nobody"}
    current = with_current_names(span({"gen_ai.operation.name": "chat", **said}))
    assert said.items() <= current.attributes.items()


def test_rewards_are_events_of_evaluation_and_broken_ones_are_not() -> None:
    names = {"agentlightning.reward.0.name": "quality", "agentlightning.reward.0.value": 0.5}
    names |= {"agentlightning.reward.1.name": "speed", "agentlightning.reward.1.value": 1}
    [quality, speed] = with_current_names(span(names)).events
    assert (quality.name, quality.timestamp) == ("gen_ai.evaluation.result", 2.0)
    assert quality.attributes == {"gen_ai.evaluation.name": "quality", "gen_ai.evaluation.score.value": 0.5}
    assert speed.attributes == {"gen_ai.evaluation.name": "speed", "gen_ai.evaluation.score.value": 1.0}
    assert with_current_names(span({**names, "agentlightning.reward.0.value": "high"})).events == []


def test_other_spans_stay_as_they_are() -> None:
    other = span({"a": 1}, "mine")
    assert with_current_names(other) == other


def test_embeddings_have_the_current_names_too() -> None:
    said = {"gen_ai.operation.name": "embeddings", "gen_ai.system": "openai", "gen_ai.usage.prompt_tokens": 3}
    assert with_current_names(span(said)).attributes == {
        "gen_ai.operation.name": "embeddings",
        "gen_ai.provider.name": "openai",
        "gen_ai.usage.input_tokens": 3,
    }
