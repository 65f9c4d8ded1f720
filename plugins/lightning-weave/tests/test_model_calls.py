"""Calls of the real OpenAI client, direct and through the model proxy, to a model's server of this machine."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
import weave
from lightning_proxy import LLMProxy
from lightning_proxy.testing import FakeEngine, tokens_of
from lightning_weave import WeaveTracer
from openai.resources.responses import AsyncResponses
from wrapt import FunctionWrapper

from lightning_core.adapter import LlmProxyTraceToTriplet, TracerTraceToTriplet, read_model_calls, read_usage
from lightning_core.emitter import emit_reward
from lightning_core.store import InMemoryLightningStore
from lightning_core.types import Span

ROLLOUTS = 64
TOOL = {"type": "function", "function": {"name": "weather", "description": "Now", "parameters": {"type": "object"}}}
TOOL_CALL: dict[str, Any] = {
    "tool_calls": [{"id": "call-1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}]
}


def user(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


@pytest.fixture
async def client(engine: FakeEngine) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=engine.url, api_key="sk-agent", max_retries=0) as client:
        yield client


@pytest.fixture
async def proxy(engine: FakeEngine, store: InMemoryLightningStore) -> AsyncIterator[LLMProxy]:
    params = {"model": "hosted_vllm/small", "api_base": engine.url}
    entry = {"model_name": "small", "litellm_params": params}
    proxy = LLMProxy(store=store, key="", launch_mode="asyncio", model_list=[entry])
    await proxy.start()
    yield proxy
    await proxy.stop()


async def test_a_whole_answer_keeps_its_tokens(
    tracer: WeaveTracer, client: openai.AsyncOpenAI, engine: FakeEngine
) -> None:
    engine.replies = ["Paris.", "Rome."]
    async with tracer.trace_context() as trace:
        await client.chat.completions.create(
            model="small",
            messages=user("Where?"),
            n=2,
            temperature=0.5,
            logprobs=True,
            tools=[TOOL],  # type: ignore[list-item]
            extra_body={"return_token_ids": True},
        )
    (span,) = trace.spans
    (call,) = read_model_calls([span])
    assert (call.model, call.error, call.finish_reason) == ("small", None, "stop")
    assert call.response_id
    assert list(call.messages) == user("Where?")
    assert list(call.tools) == [TOOL]
    assert [answer["content"] for answer in call.answers] == ["Paris.", "Rome."]
    assert list(call.prompt_token_ids or ()) == tokens_of("u:Where?\na:")
    assert [list(choice.token_ids or ()) for choice in call.choices] == [tokens_of("Paris."), tokens_of("Rome.")]
    assert len(call.logprobs or ()) == len("Paris.")
    assert read_usage([span]).output_tokens == len("Paris.Rome.")
    assert span.attributes["gen_ai.request.temperature"] == 0.5
    assert span.attributes["agentlightning.operation.input.n"] == 2
    assert "NOT_GIVEN" not in span.attributes.values()
    assert "sk-agent" not in str(span)


async def test_a_tool_call_is_read(tracer: WeaveTracer, client: openai.AsyncOpenAI, engine: FakeEngine) -> None:
    engine.replies = [TOOL_CALL]
    async with tracer.trace_context() as trace:
        await client.chat.completions.create(model="small", messages=user("?"), tools=[TOOL])  # type: ignore[list-item]
        stream = await client.chat.completions.create(model="small", messages=user("?"), stream=True)
        async for _ in stream:
            pass
    for call in read_model_calls(trace.spans):
        assert call.finish_reason == "tool_calls"
        assert call.answers[0]["tool_calls"] == TOOL_CALL["tool_calls"]


async def test_a_streamed_answer_keeps_what_weave_keeps(tracer: WeaveTracer, client: openai.AsyncOpenAI) -> None:
    async with tracer.trace_context() as trace:
        stream = await client.chat.completions.create(
            model="small",
            messages=user("Where?"),
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"return_token_ids": True},
        )
        pieces = [chunk async for chunk in stream]
    assert len(pieces) > 2
    (span,) = trace.spans
    (call,) = read_model_calls([span])
    assert (call.answers[0]["content"], call.finish_reason, call.error) == ("Paris.", "stop", None)
    assert read_usage([span]).output_tokens == len("Paris.")
    assert (call.prompt_token_ids, call.response_token_ids, call.logprobs) == (None, None, None)


async def test_a_stream_that_is_left_early_is_a_call(tracer: WeaveTracer, client: openai.AsyncOpenAI) -> None:
    async with tracer.trace_context() as trace:
        async with await client.chat.completions.create(model="small", messages=user("?"), stream=True) as stream:
            await anext(aiter(stream))
        emit_reward(1.0)
    (call,) = read_model_calls(trace.spans)
    assert call.messages
    assert all(span.parent_id is None for span in trace.spans)


async def test_a_refused_call_is_a_failed_one(
    tracer: WeaveTracer, client: openai.AsyncOpenAI, engine: FakeEngine
) -> None:
    engine.faults = [400]
    async with tracer.trace_context() as trace:
        with pytest.raises(openai.BadRequestError):
            await client.chat.completions.create(model="small", messages=user("Where?"))
    (call,) = read_model_calls(trace.spans)
    assert "told to answer 400" in (call.error or "")
    assert list(call.messages) == user("Where?")


async def test_a_cancelled_call_is_a_failed_one(
    tracer: WeaveTracer, client: openai.AsyncOpenAI, engine: FakeEngine
) -> None:
    engine.hold = asyncio.Event()
    async with tracer.trace_context() as trace:
        call = asyncio.create_task(client.chat.completions.create(model="small", messages=user("Where?")))
        await asyncio.wait_for(engine.began.wait(), 20)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
    (recorded,) = read_model_calls(trace.spans)
    assert recorded.error


async def test_other_apis_of_the_client_are_read(
    monkeypatch: pytest.MonkeyPatch, tracer: WeaveTracer, client: openai.AsyncOpenAI
) -> None:
    # OpenTelemetry's instrumentor stays in place after another tracer's test, and fails on a stream of Weave's.
    create = vars(AsyncResponses)["create"]
    while isinstance(create, FunctionWrapper):
        create = create.__wrapped__
    monkeypatch.setattr(AsyncResponses, "create", create)
    async with tracer.trace_context() as trace:
        await client.responses.create(model="small", input="Where?", instructions="Be brief.")
        await client.embeddings.create(model="small", input="Where?")
        async for _ in await client.responses.create(model="small", input="Again?", stream=True):
            pass
    whole, streamed = read_model_calls(trace.spans)
    assert [message["content"] for message in whole.messages] == ["Be brief.", "Where?"]
    assert whole.answers[0]["content"] == streamed.answers[0]["content"] == "Paris."
    assert (whole.model, whole.finish_reason) == ("small", "stop")
    assert whole.response_id != streamed.response_id
    (embedding,) = (span for span in trace.spans if span.name == "openai.embeddings.create")
    assert embedding.attributes["gen_ai.operation.name"] == "embeddings"


@pytest.mark.slow
async def test_concurrent_calls_that_the_proxy_recorded_too_are_each_there_once_with_its_tokens(
    tracer: WeaveTracer, store: InMemoryLightningStore, proxy: LLMProxy, engine: FakeEngine
) -> None:
    engine.replies = [f"answer {number}" for number in range(8)] * ROLLOUTS

    @weave.op
    async def agent(client: openai.AsyncOpenAI, sync: openai.OpenAI, number: int) -> None:
        ask = client.chat.completions.create
        await ask(model="small", messages=user(f"plain {number}"))
        await ask(model="small", messages=user(f"two {number}"), n=2)
        await ask(model="small", messages=user(f"tool {number}"), tools=[TOOL])  # type: ignore[call-overload]
        await asyncio.to_thread(sync.chat.completions.create, model="small", messages=user(f"sync {number}"))
        async for _ in await ask(model="small", messages=user(f"stream {number}"), stream=True):
            pass

    async def rollout(number: int) -> list[Span]:
        attempt = await store.start_rollout(number)
        ids = (attempt.rollout_id, attempt.attempt.attempt_id)
        endpoint = proxy.as_resource(*ids, model="small").endpoint
        async with tracer.trace_context(store=store, rollout_id=ids[0], attempt_id=ids[1]):
            with openai.OpenAI(base_url=endpoint, api_key="k") as sync:
                async with openai.AsyncOpenAI(base_url=endpoint, api_key="k") as client:
                    await agent(client, sync, number)
            await proxy.flush(*ids, end=False)
            emit_reward(number)
        return list(await store.query_spans(*ids))

    for number, spans in enumerate(await asyncio.gather(*(rollout(number) for number in range(ROLLOUTS)))):
        of_weave = [span for span in spans if span.name == "openai.chat.completions.create"]
        alone = [span for span in spans if span not in of_weave and span.name != "agent"]
        (whole,) = (span for span in spans if span.name == "agent")
        assert [span.parent_id for span in of_weave] == [whole.span_id] * 5
        calls = read_model_calls(spans)
        assert [len(call.spans) for call in calls] == [2] * 5
        asked = [f"{way} {number}" for way in ("plain", "two", "tool", "sync", "stream")]
        assert [call.messages[0]["content"] for call in calls] == asked
        assert all(call.error is None for call in calls)
        for adapter in (TracerTraceToTriplet(), LlmProxyTraceToTriplet()):
            both, proxys = adapter.adapt(spans), adapter.adapt(alone)
            assert len(proxys) == 5
            for one, other in zip(both, proxys, strict=True):
                assert (one.prompt, one.response, one.reward) == (other.prompt, other.response, other.reward)
                assert one.response["token_ids"]
        assert read_usage(spans) == read_usage(alone)
