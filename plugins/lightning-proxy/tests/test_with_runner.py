"""A rollout is never reported finished before the spans of its calls are in."""

import asyncio
from collections.abc import Sequence
from typing import Any

import openai
import pytest
from lightning_http import LightningStoreServer
from lightning_proxy import LLMProxy
from lightning_proxy.remote import flush_calls
from lightning_proxy.testing import FakeEngine
from proxy_fixtures import MakeProxy, Serve, model, status_of

from lightning_core.adapter import TraceToTrajectories
from lightning_core.agent import rollout
from lightning_core.errors import Fault
from lightning_core.runner import LitAgentRunner
from lightning_core.store import InMemoryLightningStore
from lightning_core.tracer import OtelTracer
from lightning_core.types import LLM, Attempt, AttemptedRollout, ProxyLLM, Span


class Ordered(InMemoryLightningStore):
    """Says in which order spans and outcomes came, and takes its time for spans."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[str] = []

    async def add_many_spans(self, spans: Sequence[Span]) -> Sequence[Span]:
        for _ in range(50):
            await asyncio.sleep(0)
        self.events += [span.name for span in spans]
        return await super().add_many_spans(spans)

    async def update_attempt(self, *args: Any, **kwargs: Any) -> Attempt:
        attempt = await super().update_attempt(*args, **kwargs)
        if attempt.status == "succeeded":
            self.events.append("succeeded")
        return attempt


@pytest.fixture
def store() -> Ordered:
    return Ordered()


@pytest.mark.usefixtures("vllm")
async def test_the_end_of_an_attempt_waits_for_its_calls(
    make_proxy: MakeProxy, engine: FakeEngine, store: Ordered
) -> None:
    proxy = await make_proxy(engine)

    @rollout
    async def agent(task: Any, llm: LLM) -> float:
        client = openai.AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key or "none")
        async with client:
            for number in range(3):
                said: Any = [{"role": "user", "content": f"{task} {number}"}]
                answer = await client.chat.completions.create(model=llm.model, messages=said)
                assert answer.choices[0].message.content == "ok"
            stream = await client.chat.completions.create(model=llm.model, messages=said, stream=True)
            async for chunk in stream:
                if chunk.choices[0].finish_reason:
                    break  # hangs up before the last event
        return 1.0

    await store.add_resources({"main_llm": proxy.as_resource()})
    ids = [(await store.enqueue_rollout(f"task {number}")).rollout_id for number in range(3)]
    runner = LitAgentRunner(OtelTracer(instrument=()), max_rollouts=3)
    with runner.run_context(agent=agent, store=store):
        await runner.iter()
    for place, event in enumerate(store.events):
        if event == "succeeded":
            so_far = store.events[:place]
            assert so_far.count("chat small") == 4 * (so_far.count("succeeded") + 1)
    for rollout_id in ids:
        found = TraceToTrajectories().adapt(list(await store.query_spans(rollout_id)))
        assert found.final_reward == 1.0
        assert len(found.rows) >= 3


async def test_a_runner_beside_a_keyed_store_server_opens_the_proxy(engine: FakeEngine, store: Ordered) -> None:
    @rollout
    async def agent(task: Any, llm: LLM) -> float:
        async with openai.AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key or "none") as client:
            await client.chat.completions.create(model=llm.model, messages=[{"role": "user", "content": task}])
        return 1.0

    async with LightningStoreServer(store, host="0.0.0.0", key="secret") as server:
        proxy = LLMProxy(model_list=[model(engine)], store=server, key="secret")
        await proxy.start()
        try:
            runner = LitAgentRunner(OtelTracer(instrument=()))
            with runner.run_context(agent=agent, store=server):
                ended = await runner.step("task", resources={"main_llm": proxy.as_resource()})
        finally:
            await proxy.stop()
    assert ended.status == "succeeded"
    assert "chat small" in store.events


async def test_a_runner_elsewhere_asks_the_proxy_over_http(
    serve: Serve, store: Ordered, attempt: AttemptedRollout, http: Any
) -> None:
    agent = await serve(key="secret")
    key = agent.proxy.attempt_key(attempt.rollout_id, attempt.attempt.attempt_id)
    assert await status_of(agent.chat(headers={"authorization": f"Bearer {key}"})) == 200
    assert await flush_calls([agent.proxy.as_resource()], attempt, key=key)
    assert (await store.statistics())["total_spans"] == 1
    assert await status_of(agent.chat(headers={"authorization": f"Bearer {key}"})) == 403
    assert not await flush_calls([LLM(endpoint="http://127.0.0.1:1", model="m")], attempt)
    with pytest.raises(Fault, match="has not stored all calls of the attempt: the proxy wants a key"):
        await flush_calls([agent.proxy.as_resource()], attempt)


async def test_a_proxy_that_is_gone_is_a_fault(attempt: AttemptedRollout) -> None:
    with pytest.raises(Fault, match=r"the model proxy at http://127\.0\.0\.1:1/v1 is out of reach"):
        await flush_calls([ProxyLLM(endpoint="http://127.0.0.1:1/v1", model="m")], attempt)
