"""What each source of spans writes, read as one model call."""

import json
import logging
from typing import Any

import pytest

from lightning_core.adapter import read_model_calls, read_usage
from lightning_core.adapter.usage import Usage
from lightning_core.rewards import as_reported
from lightning_core.types import Event, Span

Attributes = dict[str, Any]

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Weather in Rome?"}]
TOOL_CALL = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}
SCHEMA = {"type": "object", "properties": {}}
TOOL = {"type": "function", "function": {"name": "weather", "description": "Now", "parameters": SCHEMA}}
ANSWER = {"role": "assistant", "content": None, "tool_calls": [TOOL_CALL]}
GIVEN, ANSWERED = "agentlightning.operation.input", "agentlightning.operation.output"

PARTS: Attributes = {
    "gen_ai.input.messages": [{"role": "user", "parts": [{"type": "text", "content": "Weather in Rome?"}]}],
    "gen_ai.system_instructions": [{"type": "text", "content": "Be brief."}],
    "gen_ai.output.messages": [
        {
            "role": "assistant",
            "parts": [{"type": "tool_call", "id": "call_1", "name": "weather", "arguments": {"city": "Rome"}}],
            "finish_reason": "tool_calls",
        }
    ],
    "gen_ai.tool.definitions": [TOOL],
}
AS_JSON = {name: json.dumps(value) for name, value in PARTS.items()}
GENAI: Attributes = {
    "gen_ai.operation.name": "chat",
    "gen_ai.request.model": "small",
    "gen_ai.response.model": "small-1",
    "gen_ai.response.id": "chatcmpl-1",
    "gen_ai.response.finish_reasons": ("tool_calls",),
    "prompt_token_ids": (1, 2),
    "response_token_ids": (3,),
    "response_logprobs": (-0.5,),
}
AGENTOPS: Attributes = {
    "gen_ai.request.model": "small",
    "gen_ai.request.functions.0.name": "weather",
    "gen_ai.request.functions.0.description": "Now",
    "gen_ai.request.functions.0.parameters": json.dumps(SCHEMA),
    "gen_ai.prompt.0.role": "system",
    "gen_ai.prompt.0.content": "Be brief.",
    "gen_ai.prompt.1.role": "user",
    "gen_ai.prompt.1.content": "Weather in Rome?",
    "gen_ai.completion.0.role": "assistant",
    "gen_ai.completion.0.finish_reason": "tool_calls",
    "gen_ai.completion.0.tool_calls.0.id": "call_1",
    "gen_ai.completion.0.tool_calls.0.name": "weather",
    "gen_ai.completion.0.tool_calls.0.arguments": '{"city": "Rome"}',
    "gen_ai.response.id": "chatcmpl-1",
    "gen_ai.response.model": "small-1",
    "prompt_token_ids": (1, 2),
    "response_token_ids": (3,),
    "logprobs.content": json.dumps([{"token": "x", "logprob": -0.5}]),
}
WEAVE: Attributes = {
    f"{GIVEN}.model": "small",
    f"{GIVEN}.messages.0.role": "system",
    f"{GIVEN}.messages.0.content": "Be brief.",
    f"{GIVEN}.messages.1.role": "user",
    f"{GIVEN}.messages.1.content": "Weather in Rome?",
    f"{GIVEN}.tools.0.type": "function",
    f"{GIVEN}.tools.0.function.name": "weather",
    f"{GIVEN}.tools.0.function.description": "Now",
    f"{GIVEN}.tools.0.function.parameters": json.dumps(SCHEMA),
    f"{ANSWERED}.id": "chatcmpl-1",
    f"{ANSWERED}.model": "small-1",
    f"{ANSWERED}.prompt_token_ids": (1, 2),
    f"{ANSWERED}.choices.0.finish_reason": "tool_calls",
    f"{ANSWERED}.choices.0.token_ids": (3,),
    f"{ANSWERED}.choices.0.logprobs.content.0.logprob": -0.5,
    f"{ANSWERED}.choices.0.message.role": "assistant",
    f"{ANSWERED}.choices.0.message.tool_calls.0.id": "call_1",
    f"{ANSWERED}.choices.0.message.tool_calls.0.function.name": "weather",
    f"{ANSWERED}.choices.0.message.tool_calls.0.function.arguments": '{"city": "Rome"}',
}
OPENINFERENCE: Attributes = {
    "openinference.span.kind": "LLM",
    "llm.provider": "OpenAI",
    "llm.model_name": "small-1",
    "gen_ai.response.id": "chatcmpl-1",
    "llm.invocation_parameters": '{"temperature": 0.5, "stop": "END"}',
    "llm.input_messages.0.message.role": "system",
    "llm.input_messages.0.message.content": "Be brief.",
    "llm.input_messages.1.message.role": "user",
    "llm.input_messages.1.message.content": "Weather in Rome?",
    "llm.output_messages.0.message.role": "assistant",
    "llm.output_messages.0.message.tool_calls.0.tool_call.id": "call_1",
    "llm.output_messages.0.message.tool_calls.0.tool_call.function.name": "weather",
    "llm.output_messages.0.message.tool_calls.0.tool_call.function.arguments": '{"city": "Rome"}',
    "llm.tools.0.tool.json_schema": json.dumps(TOOL),
    "llm.finish_reason": "tool_calls",
    "llm.token_count.prompt": 20,
    "llm.token_count.completion": 4,
    "llm.cost.total": 0.25,
    "prompt_token_ids": (1, 2),
    "response_token_ids": (3,),
    "response_logprobs": (-0.5,),
}


def span(attributes: Attributes, name: str = "a span", **events: Attributes) -> Span:
    """Make a span; of an event `gen_ai.user.message` the argument is called `user__message`."""
    made = [Event(name=f"gen_ai.{each.replace('__', '.')}", attributes=said) for each, said in events.items()]
    recorded = Span.from_attributes(attributes=attributes, name=name, start_time=1.0, end_time=2.0)
    return recorded.model_copy(update={"events": made})


SOURCES = {
    "agentops": span(AGENTOPS, "openai.chat.completion"),
    "conventions, JSON": span({**GENAI, **AS_JSON}),
    "conventions, structured": span({**GENAI, **PARTS}),
    "conventions, in an event": span(GENAI, client__inference__operation__details=AS_JSON),
    "weave": span(WEAVE, "openai.chat.completions.create"),
    "openinference": span(OPENINFERENCE),
    "reported after the end of its attempt": as_reported(span(AGENTOPS), "late"),
}


@pytest.mark.parametrize("source", SOURCES)
def test_every_source_tells_the_same_call(source: str) -> None:
    [call] = read_model_calls([SOURCES[source]])
    assert (call.model, call.response_id, call.error) == ("small-1", "chatcmpl-1", None)
    assert list(call.messages) == MESSAGES
    assert list(call.tools) == [TOOL]
    assert list(call.answers) == [ANSWER]
    assert list(call.prompt_token_ids or ()) == [1, 2]
    assert list(call.response_token_ids or ()) == [3]
    assert list(call.logprobs or ()) == [-0.5]
    assert call.finish_reason == "tool_calls"


@pytest.mark.parametrize("operation", ["invoke_agent", "execute_tool", "embeddings", "create_agent"])
def test_other_operations_are_not_model_calls(operation: str) -> None:
    assert read_model_calls([span({"gen_ai.operation.name": operation, "gen_ai.response.id": "a"})]) == []
    assert read_model_calls([span({**OPENINFERENCE, "openinference.span.kind": "CHAIN"})]) == []


URL = "file:///a.png"
IMAGE = {"type": "image_url", "image_url": {"url": URL}}
LOOK = {"type": "text", "text": "look"}
ROOMS = {"id": "call_1", "type": "function", "function": {"name": "rooms", "arguments": '{"day": 1}'}}
CALLED = {"type": "tool_call", "id": "call_1", "name": "rooms", "arguments": '{"day": 1}'}


def flat(*messages: Attributes) -> Attributes:
    return {
        f"gen_ai.prompt.{place}.{name}": value for place, each in enumerate(messages) for name, value in each.items()
    }


def parts(role: str, *given: Attributes) -> Attributes:
    return {"gen_ai.operation.name": "chat", "gen_ai.input.messages": json.dumps([{"role": role, "parts": given}])}


OF_OPENINFERENCE = "llm.input_messages.0.message"
MESSAGES_OF: dict[str, tuple[Attributes, list[Attributes]]] = {
    "images as JSON of parts": (
        flat({"role": "user", "content": json.dumps([LOOK, IMAGE])}),
        [{"role": "user", "content": [LOOK, IMAGE]}],
    ),
    "images of the conventions": (
        parts("user", {"type": "text", "content": "look"}, {"type": "uri", "modality": "image", "uri": URL}),
        [{"role": "user", "content": [LOOK, IMAGE]}],
    ),
    "an image as data": (
        parts("user", {"type": "blob", "mime_type": "image/gif", "content": "R0"}),
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/gif;base64,R0"}}]}],
    ),
    "images of OpenInference": (
        {
            "openinference.span.kind": "LLM",
            f"{OF_OPENINFERENCE}.role": "user",
            f"{OF_OPENINFERENCE}.contents.0.message_content.type": "text",
            f"{OF_OPENINFERENCE}.contents.0.message_content.text": "look",
            f"{OF_OPENINFERENCE}.contents.1.message_content.type": "image",
            f"{OF_OPENINFERENCE}.contents.1.message_content.image.image.url": URL,
        },
        [{"role": "user", "content": [LOOK, IMAGE]}],
    ),
    "a text that is JSON of something else": (
        flat({"role": "user", "content": '[{"type": "table"}]'}),
        [{"role": "user", "content": '[{"type": "table"}]'}],
    ),
    "tool calls with their results": (
        flat(
            {"role": "assistant", "content": "I look.", "tool_calls": json.dumps([{**CALLED, "type": None}])},
            {"role": "tool", "content": "[]", "tool_call_id": "call_1"},
        ),
        [
            {"role": "assistant", "content": "I look.", "tool_calls": [ROOMS]},
            {"role": "tool", "content": "[]", "tool_call_id": "call_1"},
        ],
    ),
    "reasoning and tool calls as parts": (
        parts("assistant", {"type": "reasoning", "content": "Hm."}, CALLED),
        [{"role": "assistant", "content": None, "tool_calls": [ROOMS], "reasoning_content": "Hm."}],
    ),
    "a tool's result as a part": (
        parts("tool", {"type": "tool_call_response", "id": "call_1", "response": {"free": []}}),
        [{"role": "tool", "content": '{"free": []}', "tool_call_id": "call_1"}],
    ),
    "parts that chat has nothing for": (parts("user", {"type": "item_reference", "id": "1"}), []),
    "a role that tool calls or their id tell": (
        flat({"tool_calls": json.dumps([{"name": "rooms", "arguments": {"day": 1}}])}, {"tool_call_id": "call_0"}),
        [
            {"role": "assistant", "content": None, "tool_calls": [{**ROOMS, "id": "call_0"}]},
            {"role": "tool", "content": "", "tool_call_id": "call_0"},
        ],
    ),
}


@pytest.mark.parametrize("form", MESSAGES_OF)
def test_messages_are_read_in_the_form_of_openai(form: str) -> None:
    attributes, messages = MESSAGES_OF[form]
    [call] = read_model_calls([span({"gen_ai.operation.name": "chat", **attributes})])
    assert list(call.messages) == messages


def test_a_message_without_a_role_is_left_out_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    said = flat({"noise": "x"}, {"noise": "x"}, {"role": "user", "content": "hi"})
    recorded = span({"gen_ai.operation.name": "chat", **said})
    with caplog.at_level(logging.WARNING):
        [call] = read_model_calls([recorded])
        assert list(call.messages) == [{"role": "user", "content": "hi"}]
    told = "lightning.message_without_role fields=['noise']"
    assert [record.getMessage() for record in caplog.records] == [told]


@pytest.mark.parametrize(
    ("attributes", "used"),
    [
        ({"gen_ai.usage.input_tokens": 7, "gen_ai.usage.output_tokens": 3}, Usage(1, 7, 3)),
        ({"gen_ai.usage.prompt_tokens": 7, "gen_ai.usage.completion_tokens": 3}, Usage(1, 7, 3)),
        ({"prompt_token_ids": list(range(7)), "response_token_ids": [1, 2, 3]}, Usage(1, 7, 3)),
        (OPENINFERENCE, Usage(1, 20, 4, 0.25)),
        ({"gen_ai.usage.input_tokens": "many", "gen_ai.usage.cost": float("nan")}, Usage(1)),
        ({}, Usage(1)),
        ({"error.type": "budget_exhausted"}, Usage()),
    ],
    ids=[
        "conventions",
        "older conventions",
        "token ids",
        "OpenInference",
        "no numbers",
        "nothing",
        "a call that was refused",
    ],
)
def test_tokens_and_costs_are_those_that_the_source_tells(attributes: Attributes, used: Usage) -> None:
    assert read_usage([span({"gen_ai.operation.name": "chat", **attributes})]) == used
