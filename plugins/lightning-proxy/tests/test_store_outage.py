"""While the store is out of reach, agents go on, and not one call is lost, doubled or put elsewhere."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from lightning_proxy import outbox
from lightning_proxy.outbox import CallsLost
from lightning_proxy.testing import FakeEngine
from proxy_fixtures import Agent, MakeProxy, Serve, status_of

from lightning_core.errors import InvalidRequest, StoreUnavailable
from lightning_core.store import InMemoryLightningStore
from lightning_core.testing import FakeClock
from lightning_core.types import Rollout, Span


class Unreliable(InMemoryLightningStore):
    """A store that is out of reach while `is_away` says so."""

    is_away = False
    loses_answers = False
    tries = 0
    batches: Sequence[int] = ()
    """How many spans came together."""

    def _check(self) -> None:
        self.tries += 1
        if self.is_away:
            raise StoreUnavailable("the store is away")

    async def get_rollout_by_id(self, rollout_id: str) -> Rollout | None:
        self._check()
        return await super().get_rollout_by_id(rollout_id)

    async def get_many_span_sequence_ids(self, rollout_attempt_ids: Sequence[tuple[str, str]]) -> Sequence[int]:
        self._check()
        return await super().get_many_span_sequence_ids(rollout_attempt_ids)

    async def add_many_spans(self, spans: Sequence[Span]) -> Sequence[Span]:
        self._check()
        self.batches = [*self.batches, len(spans)]
        stored = await super().add_many_spans(spans)
        if self.loses_answers:
            self.loses_answers = False
            raise StoreUnavailable("the answer was lost")
        return stored


@pytest.fixture
def store() -> Unreliable:
    return Unreliable()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


async def test_what_was_sent_twice_is_there_once(serve: Serve, store: Unreliable, clock: FakeClock) -> None:
    agent = await serve(clock=clock)
    store.loses_answers = True
    assert await status_of(agent.chat("once")) == 200
    flushing = asyncio.create_task(agent.spans())
    await clock.until_waiting(2)
    await clock.advance(1)
    assert len(await flushing) == 1


async def test_the_end_of_an_attempt_waits_for_the_store_and_says_when_it_does_not_come(
    serve: Serve, store: Unreliable, clock: FakeClock
) -> None:
    agent = await serve(clock=clock)
    assert await status_of(agent.chat("x")) == 200
    store.is_away = True
    flushing = asyncio.create_task(agent.spans())
    await clock.until_waiting(2)
    await clock.advance(31)
    with pytest.raises(StoreUnavailable, match="did not take 1 model calls of attempt"):
        await flushing
    store.is_away = False
    await clock.advance(10)
    assert len(await agent.spans()) == 1


async def test_no_call_begins_when_too_much_has_piled_up(
    serve: Serve, store: Unreliable, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox, "MAX_UNSENT_SPANS", 2)
    agent = await serve(clock=clock)
    assert await status_of(agent.chat("x")) == 200
    await agent.spans()
    store.is_away = True
    assert [await status_of(agent.chat("y")) for _ in range(3)] == [200, 200, 503]
    async with agent.chat() as response:
        assert (await response.json())["error"]["code"] == "store_behind"
        assert response.headers["retry-after"] == "2"
    store.is_away = False
    sending = asyncio.create_task(agent.spans())
    await clock.advance(10)
    assert len(await sending) == 3
    assert await status_of(agent.chat("z")) == 200


async def test_a_rollout_that_was_deleted_takes_no_other_with_it(
    serve: Serve, store: Unreliable, clock: FakeClock
) -> None:
    agent = await serve(clock=clock)
    agents, proxy, gone = [agent, await agent.another()], agent.proxy, agent.rollout
    for agent in agents:
        assert await status_of(agent.chat("x")) == 200
        await agent.spans()
    store.is_away = True
    for agent in agents:
        assert await status_of(agent.chat("y")) == 200
    store.is_away = False
    await store.update_rollout(gone.rollout_id, status="cancelled")
    await store.delete_rollouts([gone.rollout_id])
    await clock.advance(10)
    await proxy.flush(gone.rollout_id, gone.attempt.attempt_id)
    assert len(await agents[1].spans()) == 2
    assert (await proxy.status())["lost_spans"] == 1


class Strict(Unreliable):
    """A store that refuses spans which say that they are bad, and with them the batch that they come in."""

    async def add_many_spans(self, spans: Sequence[Span]) -> Sequence[Span]:
        self._check()
        if any("bad" in span.attributes["gen_ai.input.messages"] for span in spans):
            raise InvalidRequest("this cannot be kept")
        return await super().add_many_spans(spans)


async def test_a_span_that_the_store_refuses_takes_no_other_with_it_and_the_end_of_its_attempt_says_so(
    make_proxy: MakeProxy, engine: FakeEngine, clock: FakeClock, http: Any
) -> None:
    store = Strict()
    proxy = await make_proxy(engine, store=store, clock=clock)
    unlucky = Agent(http, proxy, await store.start_rollout({}))
    lucky = await unlucky.another()
    for agent in (unlucky, lucky):
        assert await status_of(agent.chat("before")) == 200
        await agent.spans()
    store.is_away = True
    for agent, text in ((lucky, "one"), (unlucky, "two"), (unlucky, "bad"), (unlucky, "three"), (lucky, "four")):
        assert await status_of(agent.chat(text)) == 200
    store.is_away = False
    await clock.advance(10)
    assert len(await lucky.spans()) == 3
    with pytest.raises(CallsLost, match="could not be stored: this cannot be kept"):
        await unlucky.spans()
    assert len(await store.query_spans(unlucky.rollout.rollout_id)) == 3
    assert (await proxy.status())["lost_spans"] == 1


async def test_half_a_character_in_a_request_is_no_reason_not_to_record_it(agent: Agent) -> None:
    half = "\ud83d"
    assert await status_of(agent.chat(stop=[half])) == 200
    assert await status_of(agent.chat(model=half)) == 404
    for span in await agent.spans():
        assert span.model_dump_json().encode()


async def test_a_look_at_an_attempt_that_goes_on_does_not_cut_off_its_calls(serve: Serve, engine: FakeEngine) -> None:
    agent = await serve()
    assert await status_of(agent.chat("before")) == 200
    engine.hold = asyncio.Event()
    engine.began.clear()
    call = asyncio.create_task(status_of(agent.chat("x")))
    await engine.began.wait()
    assert len(await agent.spans()) == 1
    engine.hold.set()
    assert await call == 200
    assert len(await agent.spans()) == 2


@pytest.mark.usefixtures("vllm")
async def test_large_spans_go_in_several_batches(
    serve: Serve, store: Unreliable, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox, "_BATCH_BYTES", 100_000)  # the engine answers with five bytes for each of a prompt
    agent = await serve(clock=clock)
    assert await status_of(agent.chat("before")) == 200
    await agent.spans()
    store.is_away = True
    assert await status_of(agent.chat("tried, and again")) == 200
    await clock.until_waiting()
    for size in (7_500, 7_500, 7_500, 22_000, 10):
        assert await status_of(agent.chat("x" * size)) == 200
    store.is_away, store.batches = False, []
    await clock.advance(10)
    assert len(await agent.spans()) == 7
    assert store.batches == [1, 2, 1, 1, 1]
