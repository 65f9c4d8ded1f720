"""A proxy as scripts for agentlightning 0.3 use it: it gets another store while it runs, and takes launcher args."""

import aiohttp
import pytest
from lightning_legacy.names import PythonServerLauncherArgs
from lightning_proxy import LLMProxy
from lightning_proxy.testing import FakeEngine
from proxy_fixtures import Agent, MakeProxy, status_of

from lightning_core.errors import ProxyError
from lightning_core.store import InMemoryLightningStore
from lightning_core.types import AttemptedRollout


@pytest.mark.parametrize("launch_mode", ["asyncio", "thread"])
async def test_calls_are_recorded_in_the_store_that_it_has_by_now(
    make_proxy: MakeProxy,
    engine: FakeEngine,
    http: aiohttp.ClientSession,
    store: InMemoryLightningStore,
    attempt: AttemptedRollout,
    launch_mode: str,
) -> None:
    proxy = await make_proxy(engine, launch_mode=launch_mode)
    other = InMemoryLightningStore()
    started = await other.start_rollout("another")
    assert await status_of(Agent(http, proxy, attempt).chat()) == 200
    await proxy.flush(attempt.rollout_id, attempt.attempt.attempt_id)

    proxy.set_store(other)
    assert proxy.store is other
    assert await status_of(Agent(http, proxy, started).chat()) == 200
    await proxy.flush(started.rollout_id, started.attempt.attempt_id)
    assert (await other.query_spans(started.rollout_id)).total == 1
    assert (await store.query_spans(attempt.rollout_id)).total == 1
    async with Agent(http, proxy, attempt).chat() as response:  # it is not in this store
        assert response.status in (403, 404, 410)


async def test_calls_that_are_not_stored_yet_keep_their_store(
    make_proxy: MakeProxy,
    engine: FakeEngine,
    http: aiohttp.ClientSession,
    store: InMemoryLightningStore,
    attempt: AttemptedRollout,
) -> None:
    proxy = await make_proxy(engine)
    async with Agent(http, proxy, attempt).chat(stream=True) as response:
        await response.content.readany()
        with pytest.raises(ProxyError, match="calls are on their way to the present store; flush them"):
            proxy.set_store(InMemoryLightningStore())
        assert proxy.store is store
        await response.read()


def test_a_proxy_takes_launcher_args() -> None:
    proxy = LLMProxy(launcher_args=PythonServerLauncherArgs(port=4321, launch_mode="asyncio"))
    assert (proxy.port, proxy.url) == (4321, "http://127.0.0.1:4321")
