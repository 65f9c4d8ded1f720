from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import aiohttp
import pytest
from lightning_http import LightningStoreClient, LightningStoreServer

from lightning_core.store import InMemoryLightningStore

KEY, RUNNER_KEY = "the-algorithms-key", "the-runners-key"


@pytest.fixture
def memory() -> InMemoryLightningStore:
    return InMemoryLightningStore(run_id="run-1")


@pytest.fixture
async def server(memory: InMemoryLightningStore) -> AsyncIterator[LightningStoreServer]:
    async with LightningStoreServer(memory) as server:
        yield server


@pytest.fixture
async def client(server: LightningStoreServer) -> AsyncIterator[LightningStoreClient]:
    async with LightningStoreClient(server.url, retry_seconds=2.0, first_backoff_seconds=0.01) as client:
        yield client


@pytest.fixture
async def guarded(memory: InMemoryLightningStore) -> AsyncIterator[LightningStoreServer]:
    async with LightningStoreServer(memory, key=KEY, runner_key=RUNNER_KEY) as server:
        yield server


@pytest.fixture
async def algorithm(guarded: LightningStoreServer) -> AsyncIterator[LightningStoreClient]:
    async with LightningStoreClient(guarded.url, key=KEY) as client:
        yield client


@pytest.fixture
async def runner(guarded: LightningStoreServer) -> AsyncIterator[LightningStoreClient]:
    async with LightningStoreClient(guarded.url, key=RUNNER_KEY) as client:
        yield client


Ask = Callable[..., Awaitable[tuple[int, Any]]]


@pytest.fixture
async def ask(request: pytest.FixtureRequest) -> AsyncIterator[Ask]:
    """Send a plain request, as any program could; returns the status and the answer's JSON."""
    async with aiohttp.ClientSession() as session:

        async def ask(method: str, url: str, **options: Any) -> tuple[int, Any]:
            async with session.request(method, url, **options) as response:
                if response.content_type == "application/json":
                    return response.status, await response.json()
                return response.status, await response.read()

        yield ask
