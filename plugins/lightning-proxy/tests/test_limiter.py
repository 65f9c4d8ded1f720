"""Calls wait for their turn and for new weights, and never for ever."""

import asyncio
import time
from typing import Any

import pytest
from lightning_proxy import Drained
from lightning_proxy.limiter import Limiter
from lightning_proxy.request import Refused
from lightning_proxy.service import STOP_SECONDS
from lightning_proxy.testing import FakeEngine
from proxy_fixtures import Agent, MakeProxy

from lightning_core.store import InMemoryLightningStore
from lightning_core.testing import FakeClock
from lightning_core.types import AttemptedRollout


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def limiter(clock: FakeClock) -> Limiter:
    return Limiter(clock, max_calls=2, max_waiting=3, queue_seconds=10, pause_seconds=60)


def enter(limiter: Limiter, name: str) -> "asyncio.Task[None]":
    return asyncio.create_task(limiter.acquire(name, lambda _: None))


async def test_calls_wait_for_their_turn_in_order(limiter: Limiter, clock: FakeClock) -> None:
    calls = [enter(limiter, name) for name in "abcd"]
    await clock.until_waiting(2)
    assert (limiter.in_flight, limiter.waiting) == (2, 2)
    limiter.release("a")
    late = enter(limiter, "e")
    await clock.advance(0)
    assert [call.done() for call in (*calls, late)] == [True, True, True, False, False]
    limiter.release("b")
    limiter.release("c")
    await asyncio.gather(*calls, late)
    assert limiter.in_flight == 2


async def test_a_call_that_waits_for_too_long_is_refused(limiter: Limiter, clock: FakeClock) -> None:
    for name in "ab":
        await limiter.acquire(name, lambda _: None)
    call = enter(limiter, "c")
    await clock.until_waiting()
    await clock.advance(10)
    with pytest.raises(Refused, match="none ended within 10 s") as refused:
        await call
    assert refused.value.retry_after is not None
    limiter.release("a")
    await limiter.acquire("d", lambda _: None)


async def test_one_too_many_is_refused_at_once(limiter: Limiter, clock: FakeClock) -> None:
    calls = [enter(limiter, name) for name in "abcde"]
    await clock.until_waiting(3)
    with pytest.raises(Refused, match="3 wait"):
        await limiter.acquire("f", lambda _: None)
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    assert limiter.waiting == 0


async def test_a_call_that_is_cancelled_as_it_is_let_in_leaves_its_place_to_the_next(
    limiter: Limiter, clock: FakeClock
) -> None:
    calls = [enter(limiter, name) for name in "abcd"]
    await clock.until_waiting(2)
    limiter.release("a")
    calls[2].cancel()
    await calls[3]
    assert limiter.in_flight == 2


async def test_a_pause_lets_nobody_in_until_it_ends(limiter: Limiter, clock: FakeClock) -> None:
    limiter.pause()
    call = enter(limiter, "a")
    await clock.until_waiting()
    await clock.advance(59)
    assert not call.done()
    limiter.resume()
    await call


async def test_a_pause_that_lasts_gives_a_retryable_answer(limiter: Limiter, clock: FakeClock) -> None:
    limiter.pause()
    call = enter(limiter, "a")
    await clock.until_waiting()
    await clock.advance(60)
    with pytest.raises(Refused, match="paused for new weights, for more than 60 s") as refused:
        await call
    assert refused.value.status == 503


async def test_nobody_is_let_in_any_more_once_it_is_closed(limiter: Limiter, clock: FakeClock) -> None:
    await limiter.acquire("a", lambda _: None)
    await limiter.acquire("b", lambda _: None)
    queued = enter(limiter, "c")
    await clock.until_waiting()
    limiter.pause()
    paused = enter(limiter, "d")
    await clock.until_waiting(2)
    limiter.close()
    limiter.release("a")
    limiter.resume()
    for call in (queued, paused, enter(limiter, "e")):
        with pytest.raises(Refused, match="the proxy was stopped"):
            await call
    assert (limiter.in_flight, limiter.waiting) == (1, 0)


async def test_a_call_that_is_made_again_waits_for_the_end_of_a_pause_and_keeps_no_drain_waiting(
    limiter: Limiter, clock: FakeClock
) -> None:
    again, came = asyncio.Event(), asyncio.Event()

    async def call() -> None:
        await limiter.acquire("a", lambda _: None)
        limiter.park("a")
        await limiter.reacquire("a")  # no pause, no wait
        came.set()
        await again.wait()
        limiter.park("a")
        await limiter.reacquire("a")

    task = asyncio.create_task(call())
    await came.wait()
    limiter.pause()
    draining = asyncio.create_task(limiter.drain(5))
    await clock.until_waiting()
    again.set()
    assert await draining == Drained(finished=1, aborted=0)
    assert not task.done()
    limiter.resume()
    await task
    assert limiter.in_flight == 1


async def test_a_call_that_waits_for_another_try_keeps_its_place(limiter: Limiter, clock: FakeClock) -> None:
    ends = asyncio.Event()

    async def call() -> None:
        await limiter.acquire("a", lambda _: None)
        limiter.park("a")
        await ends.wait()
        limiter.release("a")

    resting = asyncio.create_task(call())
    await clock.advance(0)
    assert (limiter.in_flight, limiter.waiting) == (0, 1)
    calls = [enter(limiter, name) for name in "bc"]
    await clock.advance(0)
    assert [each.done() for each in calls] == [True, False]
    ends.set()
    await asyncio.gather(resting, *calls)
    assert (limiter.in_flight, limiter.waiting) == (2, 0)


async def test_draining_waits_for_what_is_under_way(limiter: Limiter, clock: FakeClock) -> None:
    assert await limiter.drain(0) == Drained(0, 0)
    for name in "ab":
        await limiter.acquire(name, lambda _: None)
    limiter.pause()
    draining = asyncio.create_task(limiter.drain(5))
    await clock.until_waiting()
    limiter.release("a")
    limiter.release("b")
    assert await draining == Drained(finished=2, aborted=0)
    limiter.resume()
    await limiter.acquire("c", lambda _: None)
    limiter.release("c")


async def test_draining_cuts_off_what_takes_too_long_and_counts_it(limiter: Limiter, clock: FakeClock) -> None:
    await limiter.acquire("a", lambda _: None)
    await limiter.acquire("b", lambda _: limiter.release("b"))
    draining = asyncio.create_task(limiter.drain(5))
    await clock.until_waiting()
    limiter.release("a")
    await clock.advance(5)
    assert await draining == Drained(finished=1, aborted=1)


async def test_new_weights_under_running_agents(
    make_proxy: MakeProxy, engine: FakeEngine, attempt: AttemptedRollout, http: Any
) -> None:
    proxy = await make_proxy(engine)
    agent = Agent(http, proxy, attempt)
    proxy.set_weight_version(1)
    engine.hold = asyncio.Event()
    old = asyncio.create_task(agent.chat().__aenter__())
    await engine.began.wait()
    await proxy.pause()
    engine.began.clear()
    new = asyncio.create_task(agent.chat().__aenter__())
    draining = asyncio.create_task(proxy.drain(timeout=20))
    async with http.get(f"{proxy.url}/health"):  # by then the call before it has come
        engine.hold.set()
    assert await draining == Drained(finished=1, aborted=0)
    proxy.set_weight_version(2)
    assert not engine.began.is_set()
    await proxy.resume()
    assert [(await call).status for call in (old, new)] == [200, 200]
    versions = [span.attributes["agentlightning.weight_version"] for span in await agent.spans()]
    assert versions == ["1", "2"]


async def test_a_call_that_is_cut_off_is_told_to_try_again(
    make_proxy: MakeProxy, engine: FakeEngine, attempt: AttemptedRollout, http: Any
) -> None:
    proxy = await make_proxy(engine)
    agent = Agent(http, proxy, attempt)
    engine.hold = asyncio.Event()
    whole = asyncio.create_task(agent.chat().__aenter__())
    await engine.began.wait()
    stream = await agent.chat(stream=True).__aenter__()
    await stream.content.readuntil(b"\n\n")
    await proxy.pause()
    assert await proxy.drain(timeout=0) == Drained(finished=0, aborted=2)
    response = await whole
    assert response.status == 503
    assert response.headers["retry-after"] == "1"
    assert b"call_aborted" in await stream.content.read()
    await asyncio.wait_for(engine.cancelled.wait(), 20)


async def test_after_a_pause_calls_go_on_although_one_gave_up_its_place_in_it(
    limiter: Limiter, clock: FakeClock
) -> None:
    for name in "ab":
        await limiter.acquire(name, lambda _: None)
    calls = [enter(limiter, name) for name in "cde"]
    await clock.until_waiting(3)
    limiter.release("a")  # it is the turn of one
    limiter.pause()
    limiter.release("b")
    await clock.advance(0)
    calls[0].cancel()
    await clock.advance(0)
    limiter.resume()
    await clock.advance(0)
    assert [call.done() for call in calls] == [True, True, True]
    assert limiter.in_flight == 2


async def test_draining_does_not_wait_for_ever_for_what_it_has_cut_off(limiter: Limiter, clock: FakeClock) -> None:
    await limiter.acquire("a", lambda _: None)  # does not let itself be cut off
    draining = asyncio.create_task(limiter.drain(5))
    await clock.until_waiting()
    await clock.advance(5)
    await clock.advance(5)
    assert draining.done()
    assert await draining == Drained(finished=0, aborted=1)


async def test_a_call_is_not_tried_again_while_new_weights_come(
    make_proxy: MakeProxy, engine: FakeEngine, attempt: AttemptedRollout, http: Any
) -> None:
    proxy = await make_proxy(engine, first_retry_seconds=0.001)
    agent = Agent(http, proxy, attempt)
    proxy.set_weight_version(1)
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
    await proxy.pause()
    engine.hold.set()
    assert await proxy.drain(timeout=20) == Drained(finished=1, aborted=0)
    assert len(engine.received) == 1
    proxy.set_weight_version(2)
    await proxy.resume()
    assert (await call).status == 200
    assert (await agent.span()).attributes["agentlightning.weight_version"] == "2"


async def test_a_call_that_waits_for_another_try_keeps_no_drain_waiting_and_is_not_cut_off(
    make_proxy: MakeProxy, engine: FakeEngine, attempt: AttemptedRollout, http: Any
) -> None:
    proxy = await make_proxy(engine, flush_grace_seconds=0, first_retry_seconds=30)
    engine.faults = [503]
    call = asyncio.create_task(Agent(http, proxy, attempt).chat().__aenter__())
    async with asyncio.timeout(20):
        while (await proxy.status())["waiting"] == 0:  # noqa: ASYNC110  # nobody is told of it
            await asyncio.sleep(0.001)
    await proxy.pause()
    assert await proxy.drain(timeout=0) == Drained(finished=0, aborted=0)
    await proxy.resume()
    assert (await proxy.status())["waiting"] == 1
    await proxy.flush(attempt.rollout_id, attempt.attempt.attempt_id)  # it does end with its attempt
    assert (await call).status == 503
    assert ((await proxy.status())["in_flight"], (await proxy.status())["waiting"]) == (0, 0)


@pytest.mark.parametrize("is_late", [False, True], ids=["before", "after"])
async def test_a_call_that_waits_for_another_try_does_not_keep_the_proxy_from_stopping(
    make_proxy: MakeProxy, engine: FakeEngine, store: InMemoryLightningStore, http: Any, is_late: bool
) -> None:
    agent = Agent(http, await make_proxy(engine, first_retry_seconds=30), await store.start_rollout({}))
    engine.faults = [503]
    real, goes_on = engine._fail, asyncio.Event()

    async def fail(request: Any, fields: Any, fault: Any) -> Any:
        if is_late:
            await goes_on.wait()
        return await real(request, fields, fault)

    engine._fail = fail  # type: ignore[method-assign]
    call = asyncio.create_task(agent.chat().__aenter__())
    await engine.began.wait()
    async with asyncio.timeout(20):
        while not is_late and (await agent.proxy.status())["waiting"] == 0:  # noqa: ASYNC110  # nobody is told of it
            await asyncio.sleep(0.001)
    asyncio.get_running_loop().call_later(0.1, goes_on.set)
    began = time.monotonic()
    await agent.proxy.stop()
    assert time.monotonic() - began < STOP_SECONDS - 1
    assert (await call).status == 503
    (span,) = await store.query_spans(agent.rollout.rollout_id)
    assert span.attributes["error.type"] == "call_aborted"
