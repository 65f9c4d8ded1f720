"""A model's server that is down is named: in each answer to an agent, and once per outage in the log."""

import logging
from typing import Any

import pytest
from lightning_proxy.testing import FakeEngine
from proxy_fixtures import Agent, MakeProxy

from lightning_core.testing import FakeClock
from lightning_core.types import AttemptedRollout


@pytest.mark.parametrize("num_retries", [0, 2])
async def test_the_url_is_in_the_answer_and_once_in_the_log(
    http: Any,
    make_proxy: MakeProxy,
    engine: FakeEngine,
    attempt: AttemptedRollout,
    caplog: pytest.LogCaptureFixture,
    num_retries: int,
) -> None:
    caplog.set_level(logging.INFO)
    clock = FakeClock()
    proxy = await make_proxy(engine, num_retries=num_retries, first_retry_seconds=0, clock=clock)
    agent = Agent(http, proxy, attempt)
    for _ in range(2):
        await engine.stop()
        for _ in range(3):
            async with agent.chat() as response:
                assert response.status == 503
                assert f"{engine.url} cannot be reached" in (await response.json())["error"]["message"]
            await clock.advance(60)  # the next call tries it again
        await engine.start()
        async with agent.chat() as response:
            assert response.status == 200
    logged = [each for each in caplog.records if each.name.startswith(("lightning", "stamina"))]
    said = [(each.levelname, each.message.split()[0], engine.url in each.message) for each in logged]
    outage = [("WARNING", "lightning.backend_down", True), ("INFO", "lightning.backend_back", False)]
    assert said == outage * 2


async def test_no_key_in_the_url_is_told(
    http: Any, make_proxy: MakeProxy, attempt: AttemptedRollout, caplog: pytest.LogCaptureFixture
) -> None:
    async with FakeEngine() as engine:
        base = engine.url.replace("//", "//user:hunter2-secret@")
    entry = {"model_name": "small", "litellm_params": {"model": "openai/small", "api_base": base}}
    agent = Agent(http, await make_proxy(model_list=[entry], num_retries=0), attempt)
    async with agent.chat() as response:
        told = (await response.json())["error"]["message"]
    assert engine.url in told
    assert "hunter2" not in told + caplog.text


async def test_a_server_that_answers_with_errors_alone_is_named_once(
    http: Any,
    make_proxy: MakeProxy,
    engine: FakeEngine,
    attempt: AttemptedRollout,
    caplog: pytest.LogCaptureFixture,
) -> None:
    agent = Agent(http, await make_proxy(engine, num_retries=0), attempt)
    engine.faults = [500] * 5
    for _ in range(5):
        async with agent.chat() as response:
            assert response.status == 500
    (record,) = caplog.records
    address = engine.url.split("/")[2]
    assert record.message.startswith(f"lightning.backend_down backend={address} reason=it answered 500")
