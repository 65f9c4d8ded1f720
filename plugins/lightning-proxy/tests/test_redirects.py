"""No answer leads an agent past the proxy, where calls are neither recorded nor counted."""

from collections.abc import AsyncIterator

import aiohttp
import pytest
from aiohttp import web
from lightning_proxy.testing import FakeEngine
from proxy_fixtures import Agent, Serve, status_of
from yarl import URL


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
    serve: Serve, engine: FakeEngine, moved: FakeEngine, path: str
) -> None:
    agent = await serve(moved, allow_paths=["rerank", "score"])
    async with agent.post(path, messages=[{"role": "user", "content": "hi"}]) as response:
        answer = await response.json()
    assert (response.status, answer["error"]["code"]) == (502, "backend_redirects")
    assert "api_base" in answer["error"]["message"]
    assert "location" not in response.headers
    assert engine.received == []


@pytest.mark.parametrize("path", ["/../metrics", "/%2e%2e/sleep", "/x/%2E./%2e%2e/metrics", "/./chat/completions"])
async def test_a_path_that_goes_up_is_refused(
    http: aiohttp.ClientSession, agent: Agent, engine: FakeEngine, path: str
) -> None:
    assert await status_of(http.post(URL(f"{agent.base}{path}", encoded=True), json={"model": "small"})) == 404
    assert engine.received == []
