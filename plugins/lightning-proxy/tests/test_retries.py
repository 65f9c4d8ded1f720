"""Who tries a call again: the proxy after a short wait, and the client, which tells of itself, after a longer one."""

import asyncio
import logging
from collections import Counter
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import openai
import pytest
from lightning_proxy import openai_backend
from lightning_proxy.testing import FakeEngine
from proxy_fixtures import Agent, Serve, answering, model, refusal, refused, status_of

from lightning_core import Trainer, rollout
from lightning_core.runner import clients
from lightning_core.testing import FakeClock
from lightning_core.types import Attempt, Rollout

SLOW_DOWN = {"error": {"message": "slow down"}}
LIMITS = {
    "x-ratelimit-remaining-requests": "0",
    "anthropic-ratelimit-tokens-reset": "2026-01-01T00:00:00Z",
    "RateLimit": "default;r=0;t=4",
}


@pytest.fixture
async def agent(serve: Serve) -> Agent:
    return await serve()


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
    agent = await serve(clock=clock)
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
    assert "closed the connection before it answered" in await refused(agent.chat(), 502, "backend_broke")
    assert len(engine.received) == 1


async def test_a_connection_that_was_kept_and_is_closed_may_be_one_that_was_idle(
    serve: Serve, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openai_backend, "_AT_ONCE_SECONDS", 10.0)  # however slow the machine is
    agent = await serve()
    assert await status_of(agent.chat()) == 200
    engine.faults = ["dies"]
    assert await status_of(agent.chat()) == 200


async def test_a_connection_that_was_kept_and_is_closed_after_a_while_was_at_work(
    serve: Serve, engine: FakeEngine
) -> None:
    agent = await serve()
    assert await status_of(agent.chat()) == 200
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
    assert "model" in await refused(agent.chat(model=model), 400, "invalid_request")
    assert engine.received == []


@pytest.mark.parametrize("num_retries", [0, 2])
async def test_the_url_is_in_the_answer_and_once_in_the_log(
    serve: Serve, engine: FakeEngine, caplog: pytest.LogCaptureFixture, num_retries: int
) -> None:
    caplog.set_level(logging.INFO)
    clock = FakeClock()
    agent = await serve(num_retries=num_retries, clock=clock)
    for _ in range(2):
        await engine.stop()
        for _ in range(3):
            assert f"{engine.url} cannot be reached" in await refused(agent.chat(), 503)
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


PATIENCE_SECONDS = 3.0
"""A twentieth of what it is, so that the limit of half a second stands for one of ten."""


class Endings:
    """Counts how rollouts ended, and for what."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.failures: set[str] = set()

    def lightning_rollout_end(self, rollout: Rollout, attempt: Attempt) -> None:
        self.counts[rollout.status] += 1
        self.failures |= {str(each) for name, each in (attempt.metadata or {}).items() if name == "failure"}


class Limited(FakeEngine):
    """Answers 429 to each call for a while, from the first one on."""

    began_at: float | None = None

    def _call(self, answer: Any) -> Any:
        handle = super()._call(answer)

        async def limited(request: Any) -> Any:
            now = asyncio.get_running_loop().time()
            self.began_at = now if self.began_at is None else self.began_at
            self.faults = [429] if now - self.began_at < PATIENCE_SECONDS / 6 else []
            return await handle(request)

        return limited


@rollout
async def ask_in_a_program(task: int, llm: Any) -> float:
    said: Any = [{"role": "user", "content": str(task)}]
    try:
        async with openai.AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key or "none", max_retries=0) as client:
            answer = await client.chat.completions.create(model=llm.model, messages=said)
    except openai.RateLimitError:
        raise RuntimeError("the program ended with exit status 1") from None
    return float(answer.choices[0].message.content == "ok")


async def test_no_rollout_is_lost_to_a_rate_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "PATIENCE_SECONDS", PATIENCE_SECONDS)
    endings = Endings()
    async with Limited() as engine:
        llm_proxy = {"model_list": [model(engine, "small")], "num_retries": 0}
        trainer = Trainer(algorithm="baseline", n_runners=8, hooks=[endings], llm_proxy=llm_proxy)
        result = await trainer.fit_async(ask_in_a_program, list(range(70)))
    assert endings.failures == set()
    assert endings.counts["requeuing"] > 0
    assert endings.counts["succeeded"] == 70
    assert result.metrics["train_reward"] == 1.0
