import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from lightning_proxy import LLMProxy
from lightning_proxy.testing import FakeEngine

from lightning_core.store import InMemoryLightningStore

sys.path.insert(0, str(Path(__file__).parent))

from litellm_agents import Agent, MakeAgent


@pytest.fixture
async def engine() -> AsyncIterator[FakeEngine]:
    async with FakeEngine(["Paris."]) as engine:
        yield engine


@pytest.fixture
async def make_agent(engine: FakeEngine) -> AsyncIterator[MakeAgent]:
    proxies: list[LLMProxy] = []
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as http:

        async def make(model: str = "hosted_vllm/small", *, prices: Any = None, **params: Any) -> Agent:
            store = InMemoryLightningStore()
            options = {"model": model, "api_base": engine.url, "api_key": "sk-of-the-backend", **params}
            entry = {"model_name": "small", "backend": "litellm", "litellm_params": options}
            proxy = LLMProxy(store=store, key="", launch_mode="asyncio", model_list=[entry])
            await proxy.start()
            proxies.append(proxy)
            return Agent(http, proxy, await store.start_rollout({}))

        yield make
        for proxy in proxies:
            await proxy.stop()
    await asyncio.sleep(0)


@pytest.fixture
async def nothing_left_running() -> AsyncIterator[None]:
    """Fail a test that leaves a task behind."""
    yield
    assert not asyncio.all_tasks() - {asyncio.current_task()}
