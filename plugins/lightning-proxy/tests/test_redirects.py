"""No answer leads an agent past the proxy, where calls are neither recorded nor counted."""

from collections.abc import AsyncIterator

import aiohttp
import pytest
from aiohttp import web
from lightning_proxy.testing import FakeEngine
from proxy_fixtures import Agent, MakeProxy
from yarl import URL

from lightning_core.types import AttemptedRollout


@pytest.fixture
async def moved(engine: FakeEngine) -> AsyncIterator[FakeEngine]:
    """A server that leads everything to the engine."""

    async def lead(request: web.Request) -> web.Response:
        return web.Response(status=307, headers={"location": f"{engine.url.removesuffix('/v1')}{request.path}"})

    app = web.Application()
    app.router.add_route("*", "/{rest:.*}", lead)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    server = FakeEngine()
    server.port = runner.addresses[0][1]
    yield server
    await runner.cleanup()


@pytest.mark.parametrize("path", ["/chat/completions", "/chat/completions/", "/rerank", "/score/"])
async def test_a_backend_that_redirects_is_an_error_and_never_the_agents_way_to_it(
    http: aiohttp.ClientSession,
    make_proxy: MakeProxy,
    engine: FakeEngine,
    moved: FakeEngine,
    attempt: AttemptedRollout,
    path: str,
) -> None:
    agent = Agent(http, await make_proxy(moved, allow_paths=["rerank", "score"]), attempt)
    async with agent.post(path, messages=[{"role": "user", "content": "hi"}]) as response:
        answer = await response.json()
    assert (response.status, answer["error"]["code"]) == (502, "backend_redirects")
    assert "api_base" in answer["error"]["message"]
    assert "location" not in response.headers
    assert engine.received == []


async def test_a_redirect_says_nothing_against_a_backend(
    http: aiohttp.ClientSession, make_proxy: MakeProxy, moved: FakeEngine, attempt: AttemptedRollout
) -> None:
    proxy = await make_proxy(moved, allow_paths=["rerank", "score"])
    for _ in range(4):
        async with Agent(http, proxy, attempt).post("/rerank") as response:
            assert response.status == 502
    (replica,) = (await proxy.status())["replicas"]
    assert replica["is_up"]
    assert replica["in_flight"] == 0


@pytest.mark.parametrize("path", ["/../metrics", "/%2e%2e/sleep", "/x/%2E./%2e%2e/metrics", "/./chat/completions"])
async def test_a_path_that_goes_up_is_refused(
    http: aiohttp.ClientSession, agent: Agent, engine: FakeEngine, path: str
) -> None:
    async with http.post(URL(f"{agent.base}{path}", encoded=True), json={"model": "small"}) as response:
        assert response.status == 404
    assert engine.received == []
