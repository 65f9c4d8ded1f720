import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import openai
import pytest
from lightning_agentops import AgentOpsTracer
from lightning_proxy.testing import FakeEngine

from lightning_core.store import InMemoryLightningStore

sys.path.insert(0, str(Path(__file__).parent))

from agentops_parts import Attempt, begin


@pytest.fixture
def store() -> InMemoryLightningStore:
    return InMemoryLightningStore()


@pytest.fixture
async def engine() -> AsyncIterator[FakeEngine]:
    async with FakeEngine(["ok"]) as engine:
        yield engine


@pytest.fixture
def tracer() -> Iterator[AgentOpsTracer]:
    tracer = AgentOpsTracer()
    with tracer.lifespan():
        yield tracer


@pytest.fixture
async def client(engine: FakeEngine) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=engine.url, api_key="sk-agent", max_retries=0) as client:
        yield client


@pytest.fixture
async def attempt(store: InMemoryLightningStore) -> Attempt:
    return await begin(store)
