"""OpenAI's client, unchanged, sync and async, against the proxy in a thread of its own."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
from lightning_proxy import LLMProxy
from lightning_proxy.testing import FakeEngine
from proxy_fixtures import Agent, MakeProxy

USER: Any = [{"role": "user", "content": "hi"}]


@pytest.fixture
async def proxy(make_proxy: MakeProxy, engine: FakeEngine) -> LLMProxy:
    return await make_proxy(engine, launch_mode="thread")


@pytest.fixture
async def client(agent: Agent) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=agent.base, api_key="none", max_retries=0) as client:
        yield client


async def test_it_reads_responses_whole_and_streamed(client: openai.AsyncOpenAI) -> None:
    assert (await client.responses.create(model="small", input="hi")).output_text == "ok"
    stream = await client.responses.create(model="small", input="hi", stream=True)
    kinds = [event.type async for event in stream]
    assert kinds[-1] == "response.completed"


async def test_the_sync_client_works_beside_a_loop_that_is_blocked(agent: Agent) -> None:
    # The proxy has a thread of its own; the engine has not, so it is called from another one.
    def call() -> str | None:
        with openai.OpenAI(base_url=agent.base, api_key="none", max_retries=0) as client:
            return client.chat.completions.create(model="small", messages=USER).choices[0].message.content

    assert await asyncio.to_thread(call) == "ok"
