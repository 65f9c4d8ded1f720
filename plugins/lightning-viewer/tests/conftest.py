import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from lightning_http.server import LightningStoreServer

from lightning_core.store import InMemoryLightningStore, LightningStore

sys.path.append(str(Path(__file__).parent))  # what the tests share

from live_stores import HOSTILE, prompt, work


@pytest.fixture
async def store() -> AsyncIterator[LightningStore]:
    """Three samples, each with two prompts: better, worse and the same; one more is queued."""
    store = InMemoryLightningStore()
    for text, rewards in (("first {task}", (0.0, 1.0, 0.5)), ("second {task}", (1.0, 0.0, 0.5))):
        version = await store.add_resources(prompt(text))
        for question, reward in zip(("easy", "hard", HOSTILE), rewards, strict=True):
            await store.enqueue_rollout({"question": question}, mode="val", resources_id=version.resources_id)
            await work(store, reward)
    await store.enqueue_rollout({"question": "waits"}, mode="train")
    yield store
    await store.aclose()


@pytest.fixture
async def server(store: LightningStore) -> AsyncIterator[LightningStoreServer]:
    async with LightningStoreServer(store, key="") as server:
        yield server
