"""Who tries a call again: the proxy after a short wait, and the client, which tells of itself, after a longer one."""

import asyncio
import logging
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import openai
import pytest
from lightning_proxy import openai_backend
from lightning_proxy.testing import FakeEngine
from proxy_fixtures import Agent, Serve, answering, refusal, status_of

from lightning_core.testing import FakeClock

SLOW_DOWN = {"error": {"message": "slow down"}}
LIMITS = {
    "x-ratelimit-remaining-requests": "0",
    "anthropic-ratelimit-tokens-reset": "2026-01-01T00:00:00Z",
    "RateLimit": "default;r=0;t=4",
}


@pytest.fixture
async def agent(serve: Serve) -> Agent:
    return await serve(first_retry_seconds=0.001)


@pytest.mark.parametrize("headers", [{}, {"retry-after-ms": "10", "retry-after": "60"}, {"retry-after": "0.01"}])
async def test_a_short_wait_is_the_proxys(agent: Agent, engine: FakeEngine, headers: dict[str, str]) -> None:
    answering(engine, SLOW_DOWN, status=429, times=2, **headers)
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
    answering(engine, SLOW_DOWN, status=429, **headers, **LIMITS)
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
    answering(engine, SLOW_DOWN, status=429, **{"retry-after": "1.5"})
    assert await status_of(agent.chat(headers={name: "1.0"})) == 429
    assert len(engine.received) == 1
    assert engine.received[0].headers[name] == "1.0"


async def test_a_client_that_tries_again_is_not_helped_to(agent: Agent, engine: FakeEngine) -> None:
    answering(engine, SLOW_DOWN, status=429, **{"retry-after-ms": "10"})
    async with openai.AsyncOpenAI(base_url=agent.base, api_key="none", max_retries=2) as client:
        with pytest.raises(openai.RateLimitError, match="slow down"):
            await client.chat.completions.create(model="small", messages=[{"role": "user", "content": "hi"}])
    # Three by the proxy in the client's first try, and one in each of its others.
    assert [call.headers["x-stainless-retry-count"] for call in engine.received] == ["0", "0", "0", "1", "2"]


async def test_another_replica_is_tried_at_once_whoever_tries_again(serve: Serve, engine: FakeEngine) -> None:
    async with FakeEngine() as other:
        agent = await serve(engine, other)
        answering(engine, SLOW_DOWN, status=429, **{"retry-after": "60"})
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


async def test_a_backend_that_dies_with_the_whole_request_does_not_get_it_again(
    agent: Agent, engine: FakeEngine
) -> None:
    engine.faults = ["dies"]
    async with agent.chat() as response:
        answer = await response.json()
    assert (response.status, answer["error"]["code"]) == (502, "backend_broke")
    assert "closed the connection before it answered" in answer["error"]["message"]
    assert len(engine.received) == 1


async def test_a_connection_that_was_kept_and_is_closed_may_be_one_that_was_idle(
    serve: Serve, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openai_backend, "_AT_ONCE_SECONDS", 10.0)  # however slow the machine is
    agent = await serve(first_retry_seconds=0.001)
    async with agent.chat() as response:
        await response.read()
    engine.faults = ["dies"]
    assert await status_of(agent.chat()) == 200


async def test_a_connection_that_was_kept_and_is_closed_after_a_while_was_at_work(
    serve: Serve, engine: FakeEngine
) -> None:
    agent = await serve(first_retry_seconds=0.001)
    async with agent.chat() as response:
        await response.read()
    real = engine._fail

    async def work(request: Any, fields: Any, fault: Any) -> Any:
        await asyncio.sleep(0.06)
        return await real(request, fields, fault)

    engine._fail = work  # type: ignore[method-assign]
    engine.faults, engine.received = ["dies"], []
    assert await refusal(agent.chat()) == (502, "backend_broke")
    assert len(engine.received) == 1


async def test_a_call_without_a_model_is_recorded_with_that_which_answered(agent: Agent, engine: FakeEngine) -> None:
    assert await status_of(agent.chat(model=None)) == 200
    assert engine.received[0].fields["model"] == "small"
    span = await agent.span()
    assert (span.name, span.attributes["gen_ai.request.model"]) == ("chat small", "small")


@pytest.mark.parametrize("model", [5, True, ["small"], {"name": "small"}])
async def test_a_model_that_is_no_name_is_refused(agent: Agent, engine: FakeEngine, model: Any) -> None:
    async with agent.chat(model=model) as response:
        answer = await response.json()
    assert (response.status, answer["error"]["code"]) == (400, "invalid_request")
    assert "model" in answer["error"]["message"]
    assert engine.received == []


@pytest.mark.parametrize("num_retries", [0, 2])
async def test_the_url_is_in_the_answer_and_once_in_the_log(
    serve: Serve, engine: FakeEngine, caplog: pytest.LogCaptureFixture, num_retries: int
) -> None:
    caplog.set_level(logging.INFO)
    clock = FakeClock()
    agent = await serve(num_retries=num_retries, first_retry_seconds=0, clock=clock)
    for _ in range(2):
        await engine.stop()
        for _ in range(3):
            async with agent.chat() as response:
                assert response.status == 503
                assert f"{engine.url} cannot be reached" in (await response.json())["error"]["message"]
            await clock.advance(60)  # the next call tries it again
        await engine.start()
        assert await status_of(agent.chat()) == 200
    logged = [each for each in caplog.records if each.name.startswith(("lightning", "stamina"))]
    said = [(each.levelname, each.message.split()[0], engine.url in each.message) for each in logged]
    outage = [("WARNING", "lightning.backend_down", True), ("INFO", "lightning.backend_back", False)]
    assert said == outage * 2


async def test_no_key_in_the_url_is_told(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    async with FakeEngine() as engine:
        base = engine.url.replace("//", "//user:hunter2-secret@")
    entry = {"model_name": "small", "litellm_params": {"model": "openai/small", "api_base": base}}
    agent = await serve(model_list=[entry], num_retries=0)
    async with agent.chat() as response:
        told = (await response.json())["error"]["message"]
    assert engine.url in told
    assert "hunter2" not in told + caplog.text
