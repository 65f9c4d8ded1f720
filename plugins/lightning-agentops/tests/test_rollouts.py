"""Many rollouts at once in one process: each span in the store, in its own attempt; directly and through our proxy."""

import asyncio
from collections import Counter
from typing import Any

import openai
import pytest
from agentops_parts import CHAT, Attempt, begin, said
from lightning_agentops import AgentOpsTracer
from lightning_proxy import LLMProxy
from lightning_proxy.testing import FakeEngine

from lightning_core.emitter import emit_reward, find_final_reward
from lightning_core.store import InMemoryLightningStore

ROLLOUTS = 64


def asks(text: str) -> Any:
    return [{"role": "user", "content": text}]


@pytest.mark.slow
@pytest.mark.parametrize("way", ["direct", "proxy"])
async def test_no_span_is_lost_or_misplaced(
    tracer: AgentOpsTracer, store: InMemoryLightningStore, engine: FakeEngine, way: str
) -> None:
    models = [{"model_name": "small", "litellm_params": {"model": "hosted_vllm/small", "api_base": engine.url}}]
    proxy = LLMProxy(model_list=models, store=store, launch_mode="asyncio", key="")

    def in_thread(client: openai.OpenAI, number: int) -> None:
        client.chat.completions.create(model="small", messages=asks(f"{number} in a thread"))
        with client.chat.completions.create(model="small", messages=asks(f"{number} sync stream"), stream=True) as one:
            assert "".join(chunk.choices[0].delta.content or "" for chunk in one) == "ok"

    async def rollout(number: int) -> Attempt:
        attempt = await begin(store)
        base = engine.url
        if way == "proxy":
            base = proxy.as_resource(attempt.rollout_id, attempt.attempt_id, model="small").get_base_url()
        client, sync = async_client.with_options(base_url=base), sync_client.with_options(base_url=base)
        async with attempt.traced(tracer):
            await client.chat.completions.create(model="small", messages=asks(f"{number} async"))
            await asyncio.gather(stream(client, f"{number} stream"), asyncio.to_thread(in_thread, sync, number))
            with pytest.raises(openai.APIStatusError):
                await client.chat.completions.create(model="small", messages=asks(f"{number} fails"), n=-1)
            emit_reward(number)
        return attempt

    async def stream(client: openai.AsyncOpenAI, text: str) -> None:
        answer = await client.chat.completions.create(model="small", messages=asks(text), stream=True)
        assert "".join([chunk.choices[0].delta.content or "" async for chunk in answer]) == "ok"

    refuse_negative(engine)
    await proxy.start()
    try:
        with openai.OpenAI(api_key="k", max_retries=0) as sync_client:
            async with openai.AsyncOpenAI(api_key="k", max_retries=0) as async_client:
                attempts = await asyncio.gather(*(rollout(number) for number in range(ROLLOUTS)))
    finally:
        await proxy.stop()
    for number, attempt in enumerate(attempts):
        spans = await attempt.spans()
        chats = [span for span in spans if span.name == CHAT]
        asked = Counter(span.attributes["gen_ai.prompt.0.content"] for span in chats)
        assert asked == Counter(f"{number} {how}" for how in ("async", "in a thread", "sync stream", "stream", "fails"))
        for span in chats:
            failed = span.attributes["gen_ai.prompt.0.content"] == f"{number} fails"
            assert (span.status.status_code, said(span)) == (("ERROR", None) if failed else ("OK", "ok"))
            assert span.parent_id is None
        assert find_final_reward(spans) == number
        answered = [call for call in await attempt.calls() if call.error is None]
        assert len(answered) == 4
        assert all(len(call.spans) == (2 if way == "proxy" else 1) for call in answered)


def refuse_negative(engine: FakeEngine) -> None:
    """Let the engine answer 400 to the calls for a negative number of choices."""
    fail = engine._fail

    async def fail_negative(request: Any, fields: dict[str, Any], fault: Any) -> Any:
        return await fail(request, fields, 400 if (fields.get("n") or 1) < 0 else fault)

    engine._fail = fail_negative  # type: ignore[method-assign]


async def test_spans_that_the_agent_makes_with_agentops_are_recorded(
    tracer: AgentOpsTracer, client: openai.AsyncOpenAI, attempt: Attempt
) -> None:
    import agentops

    @agentops.trace(name="whole")
    async def run() -> int:
        await client.chat.completions.create(model="small", messages=asks("hi"))
        return await step(2)

    @agentops.operation(name="step")
    async def step(number: int) -> int:
        return number * 2

    async with attempt.traced(tracer):
        assert await run() == 4
        by_hand = agentops.start_trace("by hand")
        agentops.end_trace(by_hand)
    chat, step_span, whole, begun = await attempt.spans()
    assert [chat.name, step_span.name, whole.name, begun.name] == [
        *(CHAT, "step.task", "whole.session", "by hand.session")
    ]
    assert chat.parent_id == step_span.parent_id == whole.span_id
