"""Token ids come from the proxy: with AgentOps beside it, triplets are those of the proxy alone."""

from typing import Any

import openai
import pytest
from agentops_parts import CALL, CHAT, USER, begin
from lightning_agentops import AgentOpsTracer
from lightning_proxy import LLMProxy
from lightning_proxy.testing import FakeEngine, tokens_of

from lightning_core.adapter import TracerTraceToTriplet, TraceToTrajectories
from lightning_core.emitter import emit_reward
from lightning_core.store import InMemoryLightningStore
from lightning_core.types import Span


async def use_the_model(client: openai.AsyncOpenAI) -> None:
    """Call it in every way that gives tokens: whole, with several choices, with a tool, streamed."""
    first = await client.chat.completions.create(model="small", messages=USER)
    emit_reward(0.25)
    await client.chat.completions.create(model="small", messages=USER, n=2)
    called = await client.chat.completions.create(model="small", messages=USER)
    answered: Any = [*USER, called.choices[0].message, {"role": "tool", "tool_call_id": "call-1", "content": "3"}]
    async for _ in await client.chat.completions.create(model="small", messages=answered, stream=True):
        pass
    assert first.choices[0].message.content == "one"
    emit_reward(1.0)


@pytest.fixture
async def spans(tracer: AgentOpsTracer, store: InMemoryLightningStore, engine: FakeEngine) -> list[Span]:
    engine.replies = ["one", "two", "three", {"tool_calls": [CALL]}, "four"]
    models = [{"model_name": "small", "litellm_params": {"model": "hosted_vllm/small", "api_base": engine.url}}]
    proxy = LLMProxy(model_list=models, store=store, launch_mode="asyncio", key="")
    attempt = await begin(store)
    await proxy.start()
    try:
        base = proxy.as_resource(attempt.rollout_id, attempt.attempt_id, model="small").get_base_url()
        async with openai.AsyncOpenAI(base_url=base, api_key="k") as client, attempt.traced(tracer):
            await use_the_model(client)
    finally:
        await proxy.stop()
    return list(await attempt.spans())


async def test_triplets_and_trajectories_are_those_of_the_proxy_alone(spans: list[Span]) -> None:
    alone = [span for span in spans if span.name != CHAT and not span.name.startswith("tool_call.")]
    assert len(spans) - len(alone) == 4 + 1  # one for each call, and one for the tool call

    def triplets(of: list[Span]) -> list[Any]:
        return [(one.prompt, one.response, one.reward) for one in TracerTraceToTriplet().adapt(of)]

    def rows(of: list[Span]) -> list[Any]:
        found = TraceToTrajectories().adapt(of).rows
        return [(row.prompt_ids, row.response_ids, row.mask, row.logprobs, row.rewards) for row in found]

    assert triplets(alone)[-1][1]["token_ids"] == tokens_of("four")
    for adapted in (triplets, rows):
        assert adapted(spans) == adapted(alone)
        assert len(adapted(spans)) >= 4
