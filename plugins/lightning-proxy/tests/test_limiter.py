"""Calls wait for their turn and for new weights, and never for ever."""

import asyncio
import time
from typing import Any

import aiohttp
import pytest
from lightning_proxy import Drained, LLMProxy, admit
from lightning_proxy.running import STOP_SECONDS
from lightning_proxy.testing import FakeEngine
from proxy_fixtures import Agent, Serve, held, refused, status_of

from lightning_core.store import InMemoryLightningStore
from lightning_core.types import AttemptedRollout


async def until(proxy: LLMProxy, **wanted: int) -> None:
    async with asyncio.timeout(20):
        while {name: (await proxy.status())[name] for name in wanted} != wanted:  # noqa: ASYNC110  # no event says so
            await asyncio.sleep(0.001)


async def test_calls_wait_for_their_turn_and_one_too_many_is_refused_at_once(
    serve: Serve, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admit, "MAX_WAITING_CALLS", 2)
    agent = await serve(max_concurrent_calls=2)
    engine.hold = asyncio.Event()
    calls = [asyncio.create_task(agent.chat(str(number)).__aenter__()) for number in range(4)]
    await until(agent.proxy, in_flight=2, waiting=2)
    assert engine.open_calls <= 2
    async with agent.chat() as response:
        assert (response.status, response.headers["retry-after"]) == (503, "1")
        assert (await response.json())["error"]["code"] == "proxy_full"
    engine.hold.set()
    assert [(await call).status for call in calls] == [200] * 4
    await until(agent.proxy, in_flight=0, waiting=0)


async def test_a_call_that_waits_for_too_long_is_refused_and_leaves_its_place(serve: Serve, engine: FakeEngine) -> None:
    agent = await serve(max_concurrent_calls=1, queue_seconds=0.05)
    first = await held(engine, agent.chat())
    assert "none ended within 0.05 s" in await refused(agent.chat(), 503)
    engine.hold.set()
    assert (await first).status == 200
    assert await status_of(agent.chat()) == 200


@pytest.mark.parametrize("waits_for", ["a turn", "new weights"])
async def test_an_agent_that_hangs_up_while_its_call_waits_leaves_its_place_to_the_next(
    serve: Serve, engine: FakeEngine, attempt: AttemptedRollout, waits_for: str
) -> None:
    agent = await serve(max_concurrent_calls=1)
    engine.hold = asyncio.Event()
    first = None
    if waits_for == "a turn":
        first = asyncio.create_task(agent.chat().__aenter__())
        await until(agent.proxy, in_flight=1)
    else:
        await agent.proxy.pause()
    async with aiohttp.ClientSession() as own:
        gone = asyncio.create_task(Agent(own, agent.proxy, attempt).chat().__aenter__())
        await until(agent.proxy, waiting=1)
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
    await until(agent.proxy, waiting=0)
    engine.hold.set()
    await agent.proxy.resume()
    assert first is None or (await first).status == 200
    assert await status_of(agent.chat()) == 200


async def test_a_pause_that_lasts_gives_a_retryable_answer(agent: Agent, proxy: LLMProxy) -> None:
    await proxy.pause(0.05)
    async with agent.chat() as response:
        assert (response.status, response.headers["retry-after"]) == (503, "1")
        assert "paused for new weights, for more than 0.05 s" in (await response.json())["error"]["message"]
    await proxy.pause()  # once more, for longer
    call = asyncio.create_task(agent.chat().__aenter__())
    await until(proxy, waiting=1)
    await proxy.resume()
    await proxy.pause()  # at once again: the call waits on
    await until(proxy, waiting=1)
    await proxy.resume()
    assert (await call).status == 200


async def test_new_weights_under_running_agents(serve: Serve, engine: FakeEngine, http: Any) -> None:
    agent = await serve()
    agent.proxy.set_weight_version(1)
    old = await held(engine, agent.chat())
    await agent.proxy.pause()
    engine.began.clear()
    new = asyncio.create_task(agent.chat().__aenter__())
    draining = asyncio.create_task(agent.proxy.drain(timeout=20))
    async with http.get(f"{agent.proxy.url}/health"):  # by then the call before it has come
        engine.hold.set()
    assert await draining == Drained(finished=1, aborted=0)
    agent.proxy.set_weight_version(2)
    assert not engine.began.is_set()
    await agent.proxy.resume()
    assert [(await call).status for call in (old, new)] == [200, 200]
    versions = [span.attributes["agentlightning.weight_version"] for span in await agent.spans()]
    assert versions == ["1", "2"]


async def test_a_call_that_is_cut_off_is_told_to_try_again(serve: Serve, engine: FakeEngine) -> None:
    agent = await serve()
    whole = await held(engine, agent.chat())
    stream = await agent.chat(stream=True).__aenter__()
    await stream.content.readuntil(b"\n\n")
    await agent.proxy.pause()
    assert await agent.proxy.drain(timeout=0) == Drained(finished=0, aborted=2)
    response = await whole
    assert response.status == 503
    assert response.headers["retry-after"] == "1"
    assert b"call_aborted" in await stream.content.read()
    await asyncio.wait_for(engine.cancelled.wait(), 20)


async def test_a_call_is_not_tried_again_while_new_weights_come(serve: Serve, engine: FakeEngine) -> None:
    agent = await serve()
    agent.proxy.set_weight_version(1)
    engine.hold = asyncio.Event()
    engine.replies = ["ok"]
    real = engine._fail

    async def fail_held(request: Any, fields: Any, fault: Any) -> Any:
        if fault is not None and engine.hold is not None:
            await engine.hold.wait()
        return await real(request, fields, fault)

    engine._fail = fail_held  # type: ignore[method-assign]
    engine.faults = [503]
    call = asyncio.create_task(agent.chat().__aenter__())
    await engine.began.wait()
    await agent.proxy.pause()
    engine.hold.set()
    assert await agent.proxy.drain(timeout=20) == Drained(finished=1, aborted=0)
    assert len(engine.received) == 1
    agent.proxy.set_weight_version(2)
    await agent.proxy.resume()
    assert (await call).status == 200
    assert (await agent.span()).attributes["agentlightning.weight_version"] == "2"


@pytest.mark.usefixtures("slow_retries")
async def test_a_call_that_waits_for_another_try_keeps_no_drain_waiting_and_is_not_cut_off(
    serve: Serve, engine: FakeEngine, attempt: AttemptedRollout
) -> None:
    agent = await serve()
    proxy = agent.proxy
    engine.faults = [503]
    call = asyncio.create_task(agent.chat().__aenter__())
    await until(proxy, waiting=1)
    await proxy.pause()
    assert await proxy.drain(timeout=0) == Drained(finished=0, aborted=0)
    await proxy.resume()
    assert (await proxy.status())["waiting"] == 1
    await proxy.flush(attempt.rollout_id, attempt.attempt.attempt_id)  # it does end with its attempt
    assert (await call).status == 503
    assert ((await proxy.status())["in_flight"], (await proxy.status())["waiting"]) == (0, 0)


@pytest.mark.usefixtures("slow_retries")
async def test_a_call_that_waits_for_another_try_does_not_keep_the_proxy_from_stopping(
    serve: Serve, engine: FakeEngine, store: InMemoryLightningStore
) -> None:
    agent = await serve()
    engine.faults = [503]
    call = asyncio.create_task(agent.chat().__aenter__())
    await until(agent.proxy, waiting=1)
    began = time.monotonic()
    await agent.proxy.stop()
    assert time.monotonic() - began < STOP_SECONDS - 1
    assert (await call).status == 503
    (span,) = await store.query_spans(agent.rollout.rollout_id)
    assert span.attributes["error.type"] == "call_aborted"
