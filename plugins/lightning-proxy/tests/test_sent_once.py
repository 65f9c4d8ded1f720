"""A call that a backend may be at is not sent again; what is asked for without a model has one in its record."""

import asyncio
from typing import Any

import pytest
from lightning_proxy import openai_backend
from lightning_proxy.testing import FakeEngine
from proxy_fixtures import Agent, Serve, refusal, status_of


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
