"""Who tries a call again: the proxy after a short wait, and the client, which tells of itself, after a longer one."""

import logging
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import openai
import pytest
from aiohttp import web
from lightning_proxy.testing import FakeEngine
from proxy_fixtures import Agent, MakeProxy, Serve, status_of

from lightning_core.testing import FakeClock
from lightning_core.types import AttemptedRollout

LIMITS = {
    "x-ratelimit-remaining-requests": "0",
    "anthropic-ratelimit-tokens-reset": "2026-01-01T00:00:00Z",
    "RateLimit": "default;r=0;t=4",
}


def limit(engine: FakeEngine, headers: dict[str, str], times: int = 100) -> None:
    """Let the engine answer 429 with these headers so many times."""
    left = [times]

    async def refuse(*_: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            return None
        return web.json_response({"error": {"message": "slow down"}}, status=429, headers=headers)

    engine._fail = refuse  # type: ignore[method-assign]


@pytest.fixture
async def agent(http: Any, make_proxy: MakeProxy, engine: FakeEngine, attempt: AttemptedRollout) -> Agent:
    return Agent(http, await make_proxy(engine, first_retry_seconds=0.001), attempt)


@pytest.mark.parametrize("headers", [{}, {"retry-after-ms": "10", "retry-after": "60"}, {"retry-after": "0.01"}])
async def test_a_short_wait_is_the_proxys(agent: Agent, engine: FakeEngine, headers: dict[str, str]) -> None:
    limit(engine, headers, times=2)
    assert await status_of(agent.chat()) == 200
    assert len(engine.received) == 3


@pytest.mark.parametrize(
    "headers",
    [
        {"retry-after": "4"},
        {"retry-after-ms": "4000"},
        {"retry-after": format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)},
        {"x-should-retry": "false"},
    ],
)
async def test_a_long_wait_is_the_clients(agent: Agent, engine: FakeEngine, headers: dict[str, str]) -> None:
    limit(engine, headers | LIMITS)
    async with agent.chat() as response:
        assert response.status == 429
        assert (await response.json())["error"]["message"] == "slow down"
    assert len(engine.received) == 1
    for name, value in (headers | LIMITS).items():
        assert response.headers[name] == value


@pytest.mark.parametrize("name", ["x-stainless-timeout", "x-stainless-read-timeout"])
async def test_a_wait_that_outlives_the_clients_timeout_is_the_clients(
    agent: Agent, engine: FakeEngine, name: str
) -> None:
    limit(engine, {"retry-after": "1.5"})
    assert await status_of(agent.chat(headers={name: "1.0"})) == 429
    assert len(engine.received) == 1
    assert engine.received[0].headers[name] == "1.0"


async def test_a_client_that_tries_again_is_not_helped_to(agent: Agent, engine: FakeEngine) -> None:
    limit(engine, {"retry-after-ms": "10"})
    async with openai.AsyncOpenAI(base_url=agent.base, api_key="none", max_retries=2) as client:
        with pytest.raises(openai.RateLimitError, match="slow down"):
            await client.chat.completions.create(model="small", messages=[{"role": "user", "content": "hi"}])
    # Three by the proxy in the client's first try, and one in each of its others.
    assert [call.headers["x-stainless-retry-count"] for call in engine.received] == ["0", "0", "0", "1", "2"]


async def test_another_replica_is_tried_at_once_whoever_tries_again(serve: Serve, engine: FakeEngine) -> None:
    async with FakeEngine() as other:
        agent = await serve(engine, other)
        limit(engine, {"retry-after": "60"})
        assert await status_of(agent.chat(headers={"x-stainless-retry-count": "1"})) == 200
    assert (len(engine.received), len(other.received)) == (1, 1)


async def test_a_server_that_has_been_down_for_a_while_is_tried_once_a_call(
    serve: Serve, engine: FakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    clock = FakeClock()
    agent = await serve(first_retry_seconds=0, clock=clock)
    await engine.stop()
    for retry_after in (None, "1"):
        for _ in range(2):
            async with agent.chat() as response:
                assert response.status == 503
                assert response.headers.get("retry-after") == retry_after
                # A server that never answered may not be one.
                assert response.headers.get("x-should-retry") == (None if retry_after else "false")
            await clock.advance(3)
        await engine.start()
        assert await status_of(agent.chat()) == 200
        await engine.stop()
    tries = [span.attributes.get("agentlightning.tries", 1) for span in await agent.spans()]
    assert tries == [3, 1, 1, 3, 1, 1]
