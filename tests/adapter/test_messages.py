import json

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
