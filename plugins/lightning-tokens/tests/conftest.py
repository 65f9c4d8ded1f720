"""Fixtures of this folder's tests, and the way to its helper modules and the proxy's."""

import sys
from collections.abc import Awaitable, Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from lightning_core.store import InMemoryLightningStore

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "lightning-proxy" / "tests")]

from lightning_tokens import TokensBackend  # noqa: E402
from proxy_fixtures import *  # noqa: F403, E402
from proxy_fixtures import Agent, MakeProxy  # noqa: E402
from token_engine import Letters  # noqa: E402

collect_ignore = [] if find_spec("torch") else ["test_generator.py"]


@pytest.fixture
def start(
    make_proxy: MakeProxy, http: aiohttp.ClientSession, store: InMemoryLightningStore
) -> Callable[..., Awaitable[Agent]]:
    """Starts a proxy with this engine behind it; returns an agent of an attempt of its own."""

    async def start(engine: Any, tokenizer: Letters | None = None, **options: Any) -> Agent:
        proxy = await make_proxy()
        backend = TokensBackend(engine, tokenizer or Letters(), **options)
        proxy.update_model_list([{"model_name": "small", "backend": backend}])
        return Agent(http, proxy, await store.start_rollout({}))

    return start
