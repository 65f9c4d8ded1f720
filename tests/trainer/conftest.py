import asyncio
import os
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from lightning_proxy.openai_backend import OpenAIBackend
from lightning_proxy.testing import FakeEngine

from lightning_core.registry import default_registry


@pytest.fixture
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("AGL_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def openai_backend() -> Iterator[None]:
    """The backend, also where the core was installed before it was registered."""
    with default_registry().register("backends", "openai", OpenAIBackend):
        yield


@pytest.fixture
async def engine() -> AsyncIterator[FakeEngine]:
    async with FakeEngine() as engine:
        yield engine


@contextmanager
def engine_apart() -> Iterator[FakeEngine]:
    """Run an engine in an event loop of its own, in a thread: who calls it has another one."""
    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        thread = threading.Thread(target=loop.run_forever)
        thread.start()
        engine = FakeEngine()
        asyncio.run_coroutine_threadsafe(engine.start(), loop).result(20)
        yield engine
        asyncio.run_coroutine_threadsafe(engine.stop(), loop).result(20)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()


def models(engine: FakeEngine, *names: str, **params: Any) -> list[dict[str, Any]]:
    """A model list whose models are all an engine's; each token costs a cent."""
    prices = {"input_cost_per_token": 0.01, "output_cost_per_token": 0.01}
    return [
        {
            "model_name": name,
            "litellm_params": {"model": f"hosted_vllm/{name}", "api_base": engine.url, **prices, **params},
        }
        for name in names or ("small",)
    ]
