import json
import logging

from lightning_core.adapter import TraceToMessages
from lightning_core.testing.adapter import TraceBuilder

CALL = {"id": "call_1", "type": "function", "function": {"name": "rooms", "arguments": '{"day": 1}'}}


def conversations(trace: TraceBuilder):
    return TraceToMessages().adapt(trace.spans)


def chat(trace: TraceBuilder, attributes: dict, **more):
    return trace.span("openai.chat.completion", attributes, **more)


def test_a_call_becomes_a_conversation_that_ends_with_its_answer():
    trace = TraceBuilder()
    trace.call()
    assert conversations(trace) == [
        {
            "messages": [
                {"role": "user", "content": "What is to be done?"},
                {"role": "assistant", "content": "This."},
            ],
            "tools": None,
        }
    ]


def test_tool_calls_come_from_the_tools_spans_where_the_answer_has_none():
    schema = {"type": "object", "properties": {"day": {"type": "integer"}}}
    trace = TraceBuilder()
    call = chat(
        trace,
        {
            "gen_ai.prompt.0.role": "user",
            "gen_ai.prompt.0.content": "Find a room.",
            "gen_ai.request.functions.0.name": "rooms",
            "gen_ai.request.functions.0.description": "Free rooms",
            "gen_ai.request.functions.0.parameters": json.dumps(schema),
            "gen_ai.completion.0.role": "assistant",
            "gen_ai.completion.0.finish_reason": "tool_calls",
        },
    )
    tool = {"tool.name": "rooms", "tool.parameters": '{"day": 1}', "tool.call.id": "call_1"}
    trace.span("tool_call.rooms", tool, parent=call)
    assert conversations(trace) == [
        {
            "messages": [
                {"role": "user", "content": "Find a room."},
                {"role": "assistant", "content": None, "tool_calls": [CALL]},
            ],
            "tools": [
                {
                    "type": "function",
                    "function": {"name": "rooms", "description": "Free rooms", "parameters": schema},
                }
            ],
        }
    ]


def test_a_conversation_of_several_turns_keeps_its_tool_calls_and_results():
    trace = TraceBuilder()
    chat(
        trace,
        {
            "gen_ai.prompt.0.role": "user",
            "gen_ai.prompt.0.content": "Find a room.",
            "gen_ai.prompt.1.role": "assistant",
            "gen_ai.prompt.1.content": "I look.",
            "gen_ai.prompt.1.tool_calls.0.id": "call_1",
            "gen_ai.prompt.1.tool_calls.0.name": "rooms",
            "gen_ai.prompt.1.tool_calls.0.arguments": '{"day": 1}',
            "gen_ai.prompt.2.role": "tool",
            "gen_ai.prompt.2.content": "[]",
            "gen_ai.prompt.2.tool_call_id": "call_1",
            "gen_ai.completion.0.role": "assistant",
            "gen_ai.completion.0.content": "None is free.",
        },
    )
    (conversation,) = conversations(trace)
    assert conversation["messages"] == [
        {"role": "user", "content": "Find a room."},
        {"role": "assistant", "content": "I look.", "tool_calls": [CALL]},
        {"role": "tool", "content": "[]", "tool_call_id": "call_1"},
        {"role": "assistant", "content": "None is free."},
    ]


def test_a_missing_role_is_told_by_what_the_message_holds_and_else_the_message_is_left_out(caplog):
    trace = TraceBuilder()
    chat(
        trace,
        {
            "gen_ai.prompt.0.tool_calls": json.dumps([{"name": "rooms", "arguments": {"day": 1}}]),
            "gen_ai.prompt.1.tool_call_id": "call_0",
            "gen_ai.prompt.1.content": "[]",
            "gen_ai.prompt.2.noise": "x",
            "gen_ai.completion.0.content": "None is free.",
        },
    )
    chat(trace, {"gen_ai.prompt.0.noise": "x", "gen_ai.prompt.1.noise": "x"})
    with caplog.at_level(logging.WARNING):
        conversation = conversations(trace)[0]
    assert conversation["messages"] == [
        {"role": "assistant", "content": None, "tool_calls": [{**CALL, "id": "call_0"}]},
        {"role": "tool", "content": "[]", "tool_call_id": "call_0"},
        {"role": "assistant", "content": "None is free."},
    ]
    # One for the attempt, not one for each message.
    told = f"lightning.message_without_role attempt_id={trace.spans[0].attempt_id} fields=['noise']"
    assert [record.getMessage() for record in caplog.records] == [told]


def test_each_choice_is_a_conversation_of_its_own():
    trace = TraceBuilder()
    trace.call(attributes={"gen_ai.completion.1.role": "assistant", "gen_ai.completion.1.content": "That."})
    assert [one["messages"][-1]["content"] for one in conversations(trace)] == ["This.", "That."]
    assert [len(one["messages"]) for one in conversations(trace)] == [2, 2]


def test_a_failed_call_gives_its_request_alone_and_a_call_without_messages_nothing():
    trace = TraceBuilder()
    trace.call(error="503")
    chat(trace, {"gen_ai.request.model": "small", "gen_ai.response.id": "a"})
    (conversation,) = conversations(trace)
    assert [message["role"] for message in conversation["messages"]] == ["user"]


def test_images_are_content_parts():
    parts = [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": "file:///a.png"}}]
    given = [
        {"type": "text", "content": "look"},
        {"type": "uri", "modality": "image", "uri": "file:///a.png"},
    ]
    trace = TraceBuilder()
    trace.call(attributes={"gen_ai.prompt.0.content": json.dumps(parts)})
    chat(
        trace,
        {
            "gen_ai.operation.name": "chat",
            "gen_ai.input.messages": json.dumps([{"role": "user", "parts": given}]),
            "gen_ai.output.messages": json.dumps([{"parts": [{"type": "text", "content": "a cat"}]}]),
        },
    )
    first, second = conversations(trace)
    assert first["messages"][0] == second["messages"][0] == {"role": "user", "content": parts}
    assert second["messages"][1] == {"role": "assistant", "content": "a cat"}


def test_a_text_that_is_json_of_something_else_stays_a_text():
    trace = TraceBuilder()
    trace.call(attributes={"gen_ai.prompt.0.content": '[{"type": "table"}]'})
    assert conversations(trace)[0]["messages"][0]["content"] == '[{"type": "table"}]'


def test_tool_results_and_reasoning_of_genai_parts_are_kept():
    messages = [
        {
            "role": "assistant",
            "parts": [
                {"type": "reasoning", "content": "Hm."},
                {"type": "tool_call", "id": "call_1", "name": "rooms", "arguments": '{"day": 1}'},
            ],
        },
        {"role": "tool", "parts": [{"type": "tool_call_response", "id": "call_1", "response": {"free": []}}]},
    ]
    trace = TraceBuilder()
    chat(trace, {"gen_ai.operation.name": "chat", "gen_ai.input.messages": messages})
    (conversation,) = conversations(trace)
    assert conversation["messages"] == [
        {"role": "assistant", "content": None, "tool_calls": [CALL], "reasoning_content": "Hm."},
        {"role": "tool", "content": '{"free": []}', "tool_call_id": "call_1"},
    ]
