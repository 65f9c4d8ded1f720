"""Everything goes wrong at once, for real: the store is gone for ten seconds, backends fail, agents hang up."""

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator
from itertools import cycle
from typing import Any

import aiohttp
import psutil
import pytest
from lightning_http import LightningStoreClient, LightningStoreServer
from lightning_proxy.testing import FakeEngine
from proxy_fixtures import Agent, MakeProxy

from lightning_core.store import InMemoryLightningStore

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("nothing_left_running")]

OUTAGE_SECONDS = 4.0
AGENTS = 20


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=60)) as session:
        yield session
    await asyncio.sleep(0)


class Caller:
    """Calls until it is told to stop, each time another way, and knows what it has said."""

    def __init__(self, agent: Agent, number: int) -> None:
        self.agent = agent
        self.said: list[str] = []
        self.answers: Counter[str] = Counter()
        self.is_live = asyncio.Event()
        """A call of it was answered: the proxy knows of its attempt."""
        self._number = number

    async def call_until(self, stop: asyncio.Event, ways: Any) -> None:
        while not stop.is_set():
            text = f"<{self._number}.{len(self.said)}>"
            self.said.append(text)
            self.answers[await self._call(text, next(ways))] += 1
            await asyncio.sleep(0.05)

    async def _call(self, text: str, way: str) -> str:
        async with self.agent.chat(text, stream=way != "whole") as response:
            if way == "hang up":
                response.close()
                return way
            body = await response.text()
        assert response.status in (200, 429, 500, 502, 503), body
        # An answer, or an error that the agent understands: nothing in between.
        assert "chatcmpl-" in body or '"error"' in body, body
        if response.status == 200:
            self.is_live.set()
        return str(response.status)


async def test_no_span_is_lost_doubled_or_put_elsewhere_and_nothing_is_left(
    make_proxy: MakeProxy, engine: FakeEngine, http: Any
) -> None:
    kept = InMemoryLightningStore()
    server = LightningStoreServer(kept, key="")
    await server.start()
    client = LightningStoreClient(server.url, key="", retry_seconds=0.3)
    rollouts = [await kept.start_rollout({}) for _ in range(AGENTS)]
    proxy = await make_proxy(engine, store=client)
    callers = [Caller(Agent(http, proxy, rollout), number) for number, rollout in enumerate(rollouts)]
    stop, ways = asyncio.Event(), cycle(["whole", "stream", "whole", "hang up", "stream"])
    process = psutil.Process()
    calling = [asyncio.create_task(caller.call_until(stop, ways)) for caller in callers]
    await asyncio.gather(*(caller.is_live.wait() for caller in callers))
    descriptors, memory = len(os.listdir("/proc/self/fd")), process.memory_info().rss
    await server.stop()
    faults = cycle([None, "dies_mid_stream", None, "garbage", 500, "dies", None, 429, "ends_early"])
    ending = asyncio.get_running_loop().time() + OUTAGE_SECONDS
    while asyncio.get_running_loop().time() < ending:
        engine.faults.extend([next(faults) for _ in range(20)])  # type: ignore[misc]
        await asyncio.sleep(0.2)
    assert (await proxy.status())["unsent_spans"] > 0
    engine.faults.clear()
    await server.start()
    await asyncio.sleep(1)
    stop.set()
    await asyncio.gather(*calling)
    for caller in callers:
        spans = await caller.agent.spans()
        recorded = Counter(text for text in caller.said for span in spans if text in str(span.attributes))
        assert recorded == Counter(caller.said)
        assert len(spans) == len({span.span_id for span in spans}) == len(caller.said)
    answers = sum((caller.answers for caller in callers), Counter[str]())
    assert {"200", "500", "502", "hang up"} <= set(answers)
    status = await proxy.status()
    assert (status["unsent_spans"], status["lost_spans"], status["in_flight"], status["waiting"]) == (0, 0, 0, 0)
    assert [replica["in_flight"] for replica in status["replicas"]] == [0]
    assert len(os.listdir("/proc/self/fd")) <= descriptors + 2 * AGENTS
    assert process.memory_info().rss < memory + 200 * 2**20
    await proxy.stop()
    await client.aclose()
    await server.stop()
