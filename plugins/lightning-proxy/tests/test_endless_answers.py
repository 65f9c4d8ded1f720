"""A backend whose answer does not end costs a proxy neither its memory nor an agent its time."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from aiohttp import web
from lightning_proxy.testing import FakeEngine
from proxy_fixtures import Serve


class Endless(FakeEngine):
    """Answers until its client goes away."""

    status = 200
    piece = b"x" * 10_000
    content_type = "application/json"
    pause_seconds = 0.0

    async def _fail(self, request: web.Request, fields: object, fault: object) -> web.StreamResponse | None:
        response = web.StreamResponse(status=self.status, headers={"content-type": self.content_type})
        await response.prepare(request)
        while True:
            await response.write(self.piece)
            await asyncio.sleep(self.pause_seconds)


@pytest.fixture
async def endless() -> AsyncIterator[Endless]:
    async with Endless() as engine:
        yield engine


@pytest.mark.parametrize("status", [200, 400, 503])
async def test_an_answer_over_the_limit_is_broken_off(serve: Serve, endless: Endless, status: int) -> None:
    endless.status = status
    agent = await serve(endless, params={"max_answer_bytes": 100_000})
    async with agent.chat() as response:
        answer = await response.json()
    assert (response.status, answer["error"]["code"]) == (502, "backend_broke")
    assert "more than 100000 bytes; max_answer_bytes sets the limit" in answer["error"]["message"]
    await asyncio.wait_for(endless.cancelled.wait(), 20)
    assert len(endless.received) == 1


async def test_a_stream_of_comments_is_one_that_does_not_go_on(serve: Serve, endless: Endless) -> None:
    endless.content_type, endless.piece, endless.pause_seconds = "text/event-stream", b": wait\n\n", 0.02
    agent = await serve(endless, params={"stream_timeout": 0.2})
    async with agent.chat(stream=True) as response:
        text = await response.text()
    assert "backend_timeout" in text
    assert "did not go on with its answer within 0.2 s" in text
