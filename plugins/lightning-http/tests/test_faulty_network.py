"""A network that loses, delays and doubles a tenth of everything: each rollout still ends exactly once."""

import asyncio
import os
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import aiohttp
from aiohttp import web
from lightning_http import LightningStoreClient, LightningStoreServer

from lightning_core.store import InMemoryLightningStore
from lightning_core.types import EnqueueRolloutRequest, Span

SEED = 20_261_121
ROLLOUTS = int(os.environ.get("AGL_TEST_ROLLOUTS", "150"))
"""AGL_TEST_ROLLOUTS=10000 takes some minutes."""
PASSED_ON = ("content-type", "x-agl-run", "x-agl-request-id", "x-agl-pending", "authorization")


class FaultyProxy:
    """Passes requests on, and answers back; does something bad to a tenth of them.

    Args:
        target: The server's address.
    """

    def __init__(self, target: str) -> None:
        self._target = target
        self._chance = random.Random(SEED)
        self.done: Counter[str] = Counter()
        self._faults: dict[str, Callable[[web.Request, bytes], Awaitable[web.StreamResponse]]] = {
            "request lost": self._lose_request,
            "answer lost": self._lose_answer,
            "answer cut": self._cut_answer,
            "delayed": self._delay,
            "doubled": self._double,
            "refused": self._refuse,
        }

    @asynccontextmanager
    async def running(self) -> AsyncIterator[str]:
        """Return its address."""
        app = web.Application(client_max_size=2**26)
        app.router.add_route("*", "/{path:.*}", self._handle)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector, auto_decompress=False) as self._session:
            try:
                yield f"http://127.0.0.1:{runner.addresses[0][1]}"
            finally:
                await runner.cleanup()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        if self._chance.random() >= 0.1:
            return await self._pass_on(request, body)
        name = self._chance.choice(list(self._faults))
        self.done[name] += 1
        return await self._faults[name](request, body)

    async def _pass_on(self, request: web.Request, body: bytes) -> web.Response:
        headers = {name: request.headers[name] for name in PASSED_ON if name in request.headers}
        async with self._session.request(
            request.method, self._target + request.path_qs, data=body, headers=headers
        ) as answer:
            kept = {name: answer.headers[name] for name in PASSED_ON if name in answer.headers}
            return web.Response(status=answer.status, body=await answer.read(), headers=kept)

    async def _lose_request(self, request: web.Request, body: bytes) -> web.StreamResponse:
        return self._hang_up(request)

    async def _lose_answer(self, request: web.Request, body: bytes) -> web.StreamResponse:
        await self._pass_on(request, body)
        return self._hang_up(request)

    async def _cut_answer(self, request: web.Request, body: bytes) -> web.StreamResponse:
        whole = await self._pass_on(request, body)
        cut = web.StreamResponse(status=whole.status, headers={"content-length": str(len(whole.body) + 1)})
        await cut.prepare(request)
        await cut.write(whole.body)
        return self._hang_up(request)

    async def _delay(self, request: web.Request, body: bytes) -> web.StreamResponse:
        # Later than what was asked after it, and later than the answer to it.
        await asyncio.sleep(self._chance.random() * 0.05)
        answer = await self._pass_on(request, body)
        await asyncio.sleep(self._chance.random() * 0.05)
        return answer

    async def _double(self, request: web.Request, body: bytes) -> web.StreamResponse:
        answers = await asyncio.gather(self._pass_on(request, body), self._pass_on(request, body))
        return answers[self._chance.randrange(2)]

    async def _refuse(self, request: web.Request, body: bytes) -> web.StreamResponse:
        return web.Response(status=self._chance.choice((502, 503, 504, 429)), text="not now")

    def _hang_up(self, request: web.Request) -> web.StreamResponse:
        if request.transport is not None:
            request.transport.abort()
        return web.Response(status=500)


async def run_through(rollouts: int, *, runners: int) -> InMemoryLightningStore:
    """Let runners bring rollouts to their end through a faulty proxy, each of them once."""
    memory = InMemoryLightningStore()
    executed: Counter[str] = Counter()
    async with LightningStoreServer(memory) as server:
        proxy = FaultyProxy(server.url)
        async with proxy.running() as url:
            options = {"retry_seconds": 60.0, "first_backoff_seconds": 0.01}
            algorithm, workers = LightningStoreClient(url, **options), LightningStoreClient(url, **options)
            ids: list[str] = []
            for first in range(0, rollouts, 50):
                batch = [EnqueueRolloutRequest(input=n) for n in range(first, min(first + 50, rollouts))]
                ids += [item.rollout_id for item in await algorithm.enqueue_many_rollouts(batch)]

            async def runner(name: str) -> None:
                while (claimed := await workers.dequeue_rollout(name)) is not None:
                    executed[claimed.rollout_id] += 1
                    own = claimed.attempt.attempt_id
                    spans = [
                        Span.from_attributes(rollout_id=claimed.rollout_id, attempt_id=own, attributes={"n": n})
                        for n in range(2)
                    ]
                    await workers.add_many_spans(spans)
                    await workers.update_attempt(claimed.rollout_id, own, status="succeeded")

            async with asyncio.TaskGroup() as group:
                for number in range(runners):
                    group.create_task(runner(f"w-{number}"))
            ended = await algorithm.wait_for_rollouts(rollout_ids=ids, timeout=60)
            assert [item.rollout_id for item in ended] == ids
            await algorithm.aclose()
            await workers.aclose()
        assert set(proxy.done) == set(proxy._faults), proxy.done
    assert executed == dict.fromkeys(ids, 1)
    return memory


async def test_each_rollout_ends_once_with_its_spans() -> None:
    memory = await run_through(ROLLOUTS, runners=8)
    found = await memory.query_rollouts()
    assert sorted(item.input for item in found) == list(range(ROLLOUTS))
    assert {item.status for item in found} == {"succeeded"}
    statistics = await memory.statistics()
    assert (statistics["total_attempts"], statistics["total_spans"]) == (ROLLOUTS, 2 * ROLLOUTS)
