"""What a proxy costs a program that does not use it, and what is left of calls that have ended."""

import asyncio
import os
import subprocess
import sys
from typing import Any

import aiohttp
import pytest
from lightning_proxy.testing import FakeEngine
from proxy_fixtures import Agent, MakeProxy

from lightning_core.store import InMemoryLightningStore


@pytest.mark.parametrize(("module", "server"), [("llm_proxy", "fastapi"), ("openai_backend", "uvicorn")])
def test_a_proxy_costs_no_web_framework_and_a_backend_no_server(module: str, server: str) -> None:
    program = f"import sys; import lightning_proxy.{module}; print({server!r} in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=200, check=False)
    assert (done.stdout, done.stderr) == ("False\n", "")


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts descriptors in /proc")
async def test_nothing_is_left_of_calls_that_have_ended(
    make_proxy: MakeProxy, engine: FakeEngine, store: InMemoryLightningStore
) -> None:
    proxy = await make_proxy(engine)

    async def calls(count: int, **fields: Any) -> None:
        agents = [Agent(http, proxy, await store.start_rollout({})) for _ in range(count)]

        async def one(agent: Agent) -> None:
            async with agent.chat(**fields) as response:
                await response.read()
            attempt = agent.rollout.attempt
            await proxy.flush(attempt.rollout_id, attempt.attempt_id)

        await asyncio.gather(*(one(agent) for agent in agents))

    async with aiohttp.ClientSession() as http:
        await calls(50)
        before, tasks = len(os.listdir("/proc/self/fd")), len(asyncio.all_tasks())
        await calls(50)
        await calls(50, stream=True)
        assert len(os.listdir("/proc/self/fd")) <= before + 5
        assert len(asyncio.all_tasks()) <= tasks + 5
    status = await proxy.status()
    assert (status["in_flight"], status["waiting"], status["unsent_spans"]) == (0, 0, 0)
    assert [replica["in_flight"] for replica in status["replicas"]] == [0]
    proxy.set_store(InMemoryLightningStore())  # refused where a call has not ended
