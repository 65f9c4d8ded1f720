"""Errors of upstreams that are none of the API's: the client and the record get their words and their status."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from proxy_fixtures import Agent, MakeProxy

from lightning_core.types import AttemptedRollout

INVALID = [{"loc": ["body", "messages"], "msg": "Field required", "type": "missing"}]


class Upstream:
    """Answers each call with one error."""

    def __init__(self) -> None:
        self.answer: tuple[int, str, str] = (500, "text/plain", "")

    async def handle(self, _: web.Request) -> web.Response:
        status, kind, body = self.answer
        return web.Response(status=status, text=body, content_type=kind, headers={"x-request-id": "req-1"})


@pytest.fixture
async def upstream() -> Upstream:
    return Upstream()


@pytest.fixture
async def agent(
    upstream: Upstream, make_proxy: MakeProxy, attempt: AttemptedRollout, http: Any
) -> AsyncIterator[Agent]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", upstream.handle)
    async with TestServer(app) as server:
        params = {"model": "openai/small", "api_base": str(server.make_url("/v1"))}
        proxy = await make_proxy(model_list=[{"model_name": "small", "litellm_params": params}], num_retries=0)
        yield Agent(http, proxy, attempt)


@pytest.mark.parametrize(
    ("status", "kind", "body", "words"),
    [
        (500, "text/plain", "CUDA out of memory\n", "CUDA out of memory"),
        (422, "application/json", json.dumps({"detail": "too many images"}), "too many images"),
        (422, "application/json", json.dumps({"detail": INVALID}), json.dumps(INVALID, separators=(",", ":"))),
        (400, "application/json", json.dumps({"object": "error", "message": "too long"}), "too long"),
        (503, "text/html", "<h1>bad gateway</h1>", "<h1>bad gateway</h1>"),
        (403, "application/json", json.dumps("forbidden"), '"forbidden"'),
    ],
)
async def test_an_error_without_the_apis_form_keeps_its_words(
    agent: Agent, upstream: Upstream, status: int, kind: str, body: str, words: str
) -> None:
    upstream.answer = (status, kind, body)
    async with agent.chat() as response:
        answered = await response.json()
    assert (response.status, response.headers["x-request-id"]) == (status, "req-1")
    assert answered["error"]["message"] == words
    async with agent.post("/messages", messages=[], max_tokens=1) as response:
        in_anthropics = await response.json()
    assert (response.status, in_anthropics["type"]) == (status, "error")
    assert in_anthropics["error"]["message"].startswith(words)
    for span in await agent.spans():
        assert span.status.description == words
        assert span.attributes["error.type"] == str(status)


async def test_an_error_without_words_says_where_it_comes_from(agent: Agent, upstream: Upstream) -> None:
    upstream.answer = (500, "text/plain", "")
    async with agent.chat() as response:
        assert "127.0.0.1" in (await response.json())["error"]["message"]
    assert "answered 500 without a word" in str((await agent.span()).status.description)
