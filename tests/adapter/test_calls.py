"""One normaliser for all sources: each call once, whoever recorded it."""

import json

import pytest

from lightning_core.adapter import ModelCall, read_model_calls
from lightning_core.rewards import as_reported
from lightning_core.testing.adapter import TraceBuilder
from lightning_core.types import Event, OtelResource, Span

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Weather in Rome?"}]
TOOL_CALL = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}
TOOL = {
    "type": "function",
    "function": {"name": "weather", "description": "Now", "parameters": {"type": "object", "properties": {}}},
}
ANSWER = {"role": "assistant", "content": None, "tool_calls": [TOOL_CALL]}
PARAMETERS = json.dumps(TOOL["function"]["parameters"])


def agentops() -> Span:
    return TraceBuilder().span(
        "openai.chat.completion",
        {
            "gen_ai.request.model": "small",
            "gen_ai.request.functions.0.name": "weather",
            "gen_ai.request.functions.0.description": "Now",
            "gen_ai.request.functions.0.parameters": PARAMETERS,
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
        },
    )


def genai_parts() -> dict[str, list[dict]]:
    return {
        "gen_ai.input.messages": [{"role": "user", "parts": [{"type": "text", "content": "Weather in Rome?"}]}],
        "gen_ai.system_instructions": [{"type": "text", "content": "Be brief."}],
        "gen_ai.output.messages": [
            {
                "role": "assistant",
                "parts": [{"type": "tool_call", "id": "call_1", "name": "weather", "arguments": {"city": "Rome"}}],
                "finish_reason": "tool_calls",
            }
        ],
        "gen_ai.tool.definitions": [{"type": "function", "name": "weather", "description": "Now"}],
    }


GENAI = {
    "gen_ai.operation.name": "chat",
    "gen_ai.request.model": "small",
    "gen_ai.response.model": "small-1",
    "gen_ai.response.id": "chatcmpl-1",
    "gen_ai.response.finish_reasons": ("tool_calls",),
    "prompt_token_ids": (1, 2),
    "response_token_ids": (3,),
    "response_logprobs": (-0.5,),
}


def genai_json() -> Span:
    parts = {name: json.dumps(value) for name, value in genai_parts().items()}
    parts["gen_ai.tool.definitions"] = json.dumps([TOOL])
    return TraceBuilder().span("chat small", {**GENAI, **parts})


def genai_structured() -> Span:
    return TraceBuilder().span("chat small", {**GENAI, **genai_parts(), "gen_ai.tool.definitions": [TOOL]})


def genai_details_event() -> Span:
    parts = {name: json.dumps(value) for name, value in genai_parts().items()}
    parts["gen_ai.tool.definitions"] = json.dumps([TOOL])
    event = Event(name="gen_ai.client.inference.operation.details", attributes=parts)
    return TraceBuilder().span("chat small", GENAI, events=[event])


def genai_old_events() -> Span:
    events = [
        Event(name="gen_ai.system.message", attributes={"content": "Be brief."}),
        Event(name="gen_ai.user.message", attributes={"content": "Weather in Rome?"}),
        Event(
            name="gen_ai.choice",
            attributes={
                "index": 0,
                "finish_reason": "tool_calls",
                "message": json.dumps({"role": "assistant", "tool_calls": [TOOL_CALL]}),
            },
        ),
    ]
    return TraceBuilder().span("chat small", {**GENAI, "gen_ai.tool.definitions": json.dumps([TOOL])}, events=events)


def genai_oldest_events() -> Span:
    events = [
        Event(name="gen_ai.content.prompt", attributes={"gen_ai.prompt": json.dumps(MESSAGES)}),
        Event(name="gen_ai.content.completion", attributes={"gen_ai.completion": json.dumps([ANSWER])}),
    ]
    return TraceBuilder().span("chat small", {**GENAI, "gen_ai.tool.definitions": json.dumps([TOOL])}, events=events)


def weave() -> Span:
    given, answered = "agentlightning.operation.input", "agentlightning.operation.output"
    return TraceBuilder().span(
        "openai.chat.completions.create",
        {
            f"{given}.model": "small",
            f"{given}.messages.0.role": "system",
            f"{given}.messages.0.content": "Be brief.",
            f"{given}.messages.1.role": "user",
            f"{given}.messages.1.content": "Weather in Rome?",
            f"{given}.tools.0.type": "function",
            f"{given}.tools.0.function.name": "weather",
            f"{given}.tools.0.function.description": "Now",
            f"{given}.tools.0.function.parameters": PARAMETERS,
            f"{answered}.id": "chatcmpl-1",
            f"{answered}.model": "small-1",
            f"{answered}.prompt_token_ids": (1, 2),
            f"{answered}.choices.0.finish_reason": "tool_calls",
            f"{answered}.choices.0.token_ids": (3,),
            f"{answered}.choices.0.logprobs.content.0.logprob": -0.5,
            f"{answered}.choices.0.message.role": "assistant",
            f"{answered}.choices.0.message.tool_calls.0.id": "call_1",
            f"{answered}.choices.0.message.tool_calls.0.function.name": "weather",
            f"{answered}.choices.0.message.tool_calls.0.function.arguments": '{"city": "Rome"}',
        },
    )


def litellm_raw() -> Span:
    choice = {
        "finish_reason": "tool_calls",
        "token_ids": [3],
        "logprobs": {"content": [{"token": "x", "logprob": -0.5}]},
        "message": ANSWER,
    }
    return TraceBuilder().span(
        "raw_gen_ai_request",
        {
            "llm.hosted_vllm.id": "chatcmpl-1",
            "llm.hosted_vllm.model": "small-1",
            "llm.hosted_vllm.messages": str(MESSAGES),
            "llm.hosted_vllm.tools": str([TOOL]),
            "llm.hosted_vllm.prompt_token_ids": "[1, 2]",
            "llm.hosted_vllm.choices": str([choice]),
        },
    )


SOURCES = [
    agentops,
    genai_json,
    genai_structured,
    genai_details_event,
    genai_old_events,
    genai_oldest_events,
    weave,
    litellm_raw,
]


@pytest.mark.parametrize("source", SOURCES)
def test_every_source_tells_the_same_call(source):
    (call,) = read_model_calls([source()])
    assert (call.model, call.response_id, call.error) == ("small-1", "chatcmpl-1", None)
    assert list(call.messages) == MESSAGES
    assert list(call.tools) == [TOOL]
    assert list(call.answers) == [ANSWER]
    assert list(call.prompt_token_ids or ()) == [1, 2]
    assert list(call.response_token_ids or ()) == [3]
    assert list(call.logprobs or ()) == [-0.5]
    assert call.finish_reason == "tool_calls"


@pytest.mark.parametrize("operation", ["invoke_agent", "execute_tool", "embeddings", "create_agent"])
def test_other_operations_are_no_model_calls(operation):
    span = TraceBuilder().span("work", {"gen_ai.operation.name": operation, "gen_ai.response.id": "a"})
    assert read_model_calls([span]) == []


def called(trace: TraceBuilder) -> list[ModelCall]:
    return read_model_calls(trace.spans)


def bare(trace: TraceBuilder, id: str | None = None, tokens: bool = False, **more) -> Span:
    """Add a chat span with an id or without one, with tokens or without."""
    attributes: dict = {"gen_ai.operation.name": "chat"}
    if id is not None:
        attributes["gen_ai.response.id"] = id
    if tokens:
        attributes |= {"prompt_token_ids": [1], "response_token_ids": [2]}
    return trace.span("chat", attributes, **more)


def ids(calls: list[ModelCall]) -> list[list[str]]:
    return [[span.span_id for span in call.spans] for call in calls]


def test_one_response_id_is_one_call_and_its_tokens_are_those_of_the_source_that_has_them():
    trace = TraceBuilder()
    trace.call(attributes={"gen_ai.response.id": "a"})
    bare(trace, "a", tokens=True)
    (call,) = called(trace)
    assert ids([call]) == [["span-2", "span-1"]]
    assert call.prompt_token_ids == [1]
    assert [message["content"] for message in call.messages] == ["What is to be done?"]


def by_proxy(trace, id, token, **more):
    attributes = {"gen_ai.operation.name": "chat", "gen_ai.response.id": id}
    tokens = {"prompt_token_ids": [0], "response_token_ids": [token]}
    resource = OtelResource(attributes={"service.name": "lightning-proxy"})
    return trace.span("chat", {**attributes, **tokens}, resource=resource, **more)


def test_a_server_that_gives_all_answers_the_same_id_has_answered_as_often_as_the_proxy_has_recorded():
    trace = TraceBuilder()
    for token in (1, 2, 3):
        by_proxy(trace, "constant", token)
    assert [call.response_token_ids for call in called(trace)] == [[1], [2], [3]]


@pytest.mark.parametrize("lies_within", [False, True])
@pytest.mark.parametrize("instrumentors", [1, 2])
def test_calls_of_one_id_that_an_instrumentor_recorded_too_count_once_each(instrumentors, lies_within):
    trace = TraceBuilder()
    for token in (1, 2):
        around = [bare(trace, "constant") for _ in range(instrumentors)]
        by_proxy(trace, "constant", token, parent=around[-1] if lies_within else None)
    calls = called(trace)
    assert [call.response_token_ids for call in calls] == [[1], [2]]
    assert [len(call.spans) for call in calls] == [instrumentors + 1] * 2
    assert ids(calls)[1][0] == f"span-{2 * instrumentors + 2}"


def test_a_span_around_several_calls_of_one_id_that_the_proxy_recorded_is_the_last_one():
    trace = TraceBuilder()
    around = bare(trace, "constant")
    by_proxy(trace, "constant", 1, parent=around)
    by_proxy(trace, "constant", 2, parent=around)
    assert ids(called(trace)) == [["span-2"], ["span-3", "span-1"]]


def test_identical_calls_with_ids_of_their_own_are_calls_of_their_own():
    trace = TraceBuilder()
    trace.call([1], [2])
    trace.call([1], [2])
    assert ids(called(trace)) == [["span-1"], ["span-2"]]


@pytest.mark.parametrize(("outer", "inner"), [("a", None), (None, "a"), (None, None), ("a", "a")])
def test_a_call_span_within_another_is_the_same_call_unless_their_ids_differ(outer, inner):
    trace = TraceBuilder()
    around = bare(trace, outer)
    between = trace.span("http", parent=around)
    bare(trace, inner, tokens=True, parent=between)
    assert ids(called(trace)) == [["span-3", "span-1"]]


def test_a_call_within_another_with_an_id_of_its_own_is_another_call():
    trace = TraceBuilder()
    bare(trace, "b", parent=bare(trace, "a"))
    assert ids(called(trace)) == [["span-1"], ["span-2"]]


def test_a_span_around_several_calls_is_the_last_one():
    trace = TraceBuilder()
    around = bare(trace)
    bare(trace, "a", parent=around)
    bare(trace, "b", parent=around)
    assert ids(called(trace)) == [["span-1", "span-3"], ["span-2"]]


def test_a_failed_try_within_a_call_that_went_well_is_a_call_of_its_own():
    trace = TraceBuilder()
    around = bare(trace, "a")
    bare(trace, parent=around, error="503")
    bare(trace, "a", parent=around, tokens=True)
    calls = called(trace)
    assert [(call.span_id, call.error) for call in calls] == [("span-2", "503"), ("span-3", None)]


def test_the_spans_of_a_call_through_the_litellm_proxy_are_one_call():
    trace = TraceBuilder()
    trace.call(attributes={"gen_ai.response.id": "chatcmpl-proxy"})
    request = trace.span("litellm_request", {"gen_ai.response.id": "chatcmpl-proxy"})
    raw = {"llm.hosted_vllm.id": "cmpl-engine", "llm.hosted_vllm.prompt_token_ids": "[1]"}
    trace.span("raw_gen_ai_request", {**raw, "llm.hosted_vllm.response_token_ids": "[[2]]"}, parent=request)
    (call,) = called(trace)
    assert ids([call]) == [["span-3", "span-1", "span-2"]]
    assert call.response_token_ids == [2]


def test_calls_are_in_the_order_of_the_attempt_whatever_the_clocks_say():
    trace = TraceBuilder()
    trace.call([1], [2], start=100.0)
    trace.call([3], [4], start=5.0)
    calls = read_model_calls(trace.spans[::-1])
    assert [(call.order, call.sequence_id, call.prompt_token_ids) for call in calls] == [(0, 1, [1]), (1, 2, [3])]


def test_a_failed_call_has_no_choice_and_says_why():
    trace = TraceBuilder()
    trace.call(error="429 too many requests")
    trace.span("chat", {"gen_ai.operation.name": "chat", "error.type": "timeout"})
    assert [(call.error, call.choices) for call in called(trace)] == [("429 too many requests", ()), ("timeout", ())]


def test_a_call_without_tokens_says_so_and_an_empty_answer_is_not_that():
    trace = TraceBuilder()
    trace.call()
    trace.call([1], [])
    first, second = called(trace)
    assert (first.prompt_token_ids, first.response_token_ids) == (None, None)
    assert (second.prompt_token_ids, second.response_token_ids) == ([1], [])


def test_every_choice_has_its_tokens_log_probabilities_and_end():
    trace = TraceBuilder()
    trace.call(
        [1],
        [[2], [3, 4]],
        attributes={
            "response_logprobs": [[-0.5], [-0.25, -1.0]],
            "gen_ai.completion.1.content": "That.",
            "gen_ai.completion.1.finish_reason": "length",
        },
    )
    (call,) = called(trace)
    assert [tuple(choice) for choice in call.choices] == [([2], [-0.5], "stop"), ([3, 4], [-0.25, -1.0], "length")]
    assert [answer["content"] for answer in call.answers] == ["This.", "That."]


def test_the_same_span_given_twice_is_one():
    trace = TraceBuilder()
    trace.call([1], [2])
    assert len(read_model_calls([*trace.spans, *trace.spans])) == 1


def test_a_call_that_was_reported_after_the_end_of_its_attempt_is_read_like_others() -> None:
    (call,) = read_model_calls([as_reported(agentops(), "late")])
    assert (call.answers[0]["tool_calls"], call.model) == ([TOOL_CALL], read_model_calls([agentops()])[0].model)
