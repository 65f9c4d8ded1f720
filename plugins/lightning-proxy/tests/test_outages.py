"""A model's server that is down is named: in each answer to an agent, and once per outage in the log."""

import logging

import pytest
from lightning_proxy.testing import FakeEngine
from proxy_fixtures import Serve, status_of

from lightning_core.testing import FakeClock


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
