import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from lightning_http.server import LightningStoreServer

from lightning_core import PromptTemplate, Trainer
from lightning_core.runs.folder import RunFolder
from lightning_core.store import InMemoryLightningStore, LightningStore
from lightning_core.types import NamedResources

sys.path.append(str(Path(__file__).parent))  # what the tests share

from live_stores import HOSTILE, prompt, work
from runs import KEY, TASKS, Improves, agent


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


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run with a better prompt, four samples, and one failure."""
    root = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MY_API_KEY", KEY)
        first: NamedResources = {"main_prompt": PromptTemplate(template="first\n{task}")}
        trainer = Trainer(algorithm=Improves(), n_runners=2, initial_resources=first, run_dir=root)
        trainer.fit(agent, val_dataset=TASKS)
        asyncio.run(trainer.store.aclose())
    [path] = root.iterdir()
    return RunFolder(path)
