"""A proxy that stops tells the agents of calls under way so, in the form of their API."""

import asyncio
import json
import logging
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest
from lightning_proxy import running
from lightning_proxy.testing import FakeEngine
from proxy_fixtures import Agent, Serve

from lightning_core.store import InMemoryLightningStore
from lightning_core.testing import FakeClock


@pytest.fixture(autouse=True)
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "STOP_SECONDS", 0.2)


@pytest.fixture(autouse=True)
def nothing_failed(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    yield
    assert [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR] == []


async def told(call: Any) -> tuple[int, dict[str, Any], aiohttp.typedefs.LooseHeaders]:
    """Return a whole answer."""
    async with call as response:
        return response.status, await response.json(), response.headers


async def stop_with(agent: Agent, engine: FakeEngine, call: Any) -> Any:
    """Stop the proxy while a call is under way, and return what became of that."""
    task = asyncio.ensure_future(call)
    await asyncio.wait_for(engine.began.wait(), 20)
    await agent.proxy.stop()
    return await asyncio.wait_for(task, 20)


@pytest.mark.parametrize("path", ["/chat/completions", "/messages", "/responses"])
async def test_a_call_under_way_is_told_to_try_again(
    agent: Agent, engine: FakeEngine, store: InMemoryLightningStore, path: str
) -> None:
    engine.faults = ["never"]
    call = agent.post(path, messages=[{"role": "user", "content": "hi"}], input="hi", max_tokens=3)
    status, answer, headers = await stop_with(agent, engine, told(call))
    assert status == 503
    assert headers["retry-after"] == "1"
    assert "proxy_stopped" in json.dumps(answer["error"])
    (span,) = await store.query_spans(agent.rollout.rollout_id)
    assert span.attributes["error.type"] == "proxy_stopped"


async def test_a_stream_under_way_ends_with_an_error_event(
    agent: Agent, engine: FakeEngine, store: InMemoryLightningStore
) -> None:
    engine.hold = asyncio.Event()

    async def read() -> str:
        async with agent.chat(stream=True) as response:
            return str(await response.text())

    text = await stop_with(agent, engine, read())
    last = json.loads(text.strip().split("\n\n")[-1].removeprefix("data: "))
    assert last["error"]["code"] == "proxy_stopped"
    (span,) = await store.query_spans(agent.rollout.rollout_id)
    assert span.attributes["error.type"] == "proxy_stopped"


async def test_a_call_that_waits_for_new_weights_does_not_reach_the_engine(
    serve: Serve, engine: FakeEngine, store: InMemoryLightningStore
) -> None:
    clock = FakeClock()
    agent = await serve(clock=clock)
    await agent.proxy.pause()
    call = asyncio.ensure_future(told(agent.chat()))
    await clock.until_waiting()
    await agent.proxy.stop()
    status, answer, _ = await call
    assert (status, answer["error"]["code"]) == (503, "proxy_stopped")
    assert engine.received == []
    (span,) = await store.query_spans(agent.rollout.rollout_id)
    assert span.attributes["error.type"] == "proxy_stopped"


async def test_a_request_whose_body_does_not_come_is_told_so(agent: Agent) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", agent.proxy.port)
    path = f"{agent.base}/chat/completions".split(str(agent.proxy.port), 1)[1]
    writer.write(
        f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 9\r\nexpect: 100-continue\r\n\r\n".encode()
    )
    await asyncio.wait_for(reader.readuntil(b"100 Continue\r\n\r\n"), 20)  # the server waits for the body
    await agent.proxy.stop()
    answer = (await asyncio.wait_for(reader.read(), 20)).decode()
    writer.close()
    await writer.wait_closed()
    assert answer.startswith("HTTP/1.1 503 ")
    assert "proxy_stopped" in answer


async def test_an_agent_that_takes_nothing_does_not_keep_the_proxy_from_stopping(
    agent: Agent, engine: FakeEngine
) -> None:
    engine.replies = ["x" * 400_000]
    async with agent.chat(stream=True) as response:  # many times what connections buffer
        assert response.status == 200
        await asyncio.sleep(0.1)
        await asyncio.wait_for(agent.proxy.stop(), 20)
