"""Whether an attempt is live is asked of the store rarely, waited for shortly, and its end is never forgotten."""

import asyncio
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest
from lightning_proxy import LLMProxy
from lightning_proxy.owner import LiveAttempts, Owner
from lightning_proxy.request import Refused
from lightning_proxy.routes import REPORT_PATH
from lightning_proxy.testing import FakeEngine
from proxy_fixtures import Agent, MakeProxy

from lightning_core.errors import StoreUnavailable
from lightning_core.store import InMemoryLightningStore
from lightning_core.testing import FakeClock
from lightning_core.types import AttemptedRollout, Rollout


class Hesitant(InMemoryLightningStore):
    """A store that counts questions, is away while `is_away` says so, and answers when `gate` is open."""

    def __init__(self) -> None:
        super().__init__()
        self.questions = 0
        self.is_away = False
        self.gate = asyncio.Event()
        self.gate.set()

    async def get_rollout_by_id(self, rollout_id: str) -> Rollout | None:
        self.questions += 1
        if self.is_away:
            raise StoreUnavailable("the store is away")
        found = await super().get_rollout_by_id(rollout_id)
        await self.gate.wait()
        return found


@pytest.fixture
async def store() -> Hesitant:
    return Hesitant()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def attempts(store: Hesitant, clock: FakeClock) -> LiveAttempts:
    return LiveAttempts(lambda run_id: store, clock)


@pytest.fixture
async def owner(store: Hesitant) -> Owner:
    return owner_of(await store.start_rollout({}))


def owner_of(rollout: AttemptedRollout) -> Owner:
    return Owner(None, rollout.rollout_id, rollout.attempt.attempt_id)


async def test_calls_at_once_ask_once(attempts: LiveAttempts, store: Hesitant, owner: Owner) -> None:
    await asyncio.gather(*(attempts.require(owner, has_key=False) for _ in range(200)))
    assert store.questions == 1


async def test_what_is_not_live_is_asked_of_once_a_second(
    attempts: LiveAttempts, store: Hesitant, clock: FakeClock, owner: Owner
) -> None:
    await store.update_attempt(owner.rollout_id, owner.attempt_id, status="succeeded")
    for _ in range(3):
        with pytest.raises(Refused, match="has ended: its rollout is 'succeeded'"):
            await attempts.require(owner, has_key=True)
    assert store.questions == 1
    await clock.advance(1.0)
    with pytest.raises(Refused, match="has ended"):
        await attempts.require(owner, has_key=True)
    assert store.questions == 2


async def test_a_live_attempt_waits_a_moment_for_a_store_that_hangs(
    attempts: LiveAttempts, store: Hesitant, clock: FakeClock, owner: Owner
) -> None:
    await attempts.require(owner, has_key=False)
    await clock.advance(1.0)
    store.gate.clear()
    for waiting in (2, 2):  # the call, and the question, which is one for both
        call = asyncio.create_task(attempts.require(owner, has_key=False))
        await clock.until_waiting(waiting)
        await clock.advance(0.2)
        await call
    assert store.questions == 2
    await clock.advance(5.0)  # the question has come to its end, so for a second the store is away
    await asyncio.wait_for(attempts.require(owner, has_key=False), 20)
    assert store.questions == 2


async def test_a_store_that_is_away_is_asked_again_after_a_second(
    attempts: LiveAttempts, store: Hesitant, clock: FakeClock, owner: Owner
) -> None:
    store.is_away = True
    for _ in range(3):
        await attempts.require(owner, has_key=True)
        with pytest.raises(Refused, match="the store is out of reach"):
            await attempts.require(owner, has_key=False)
    assert store.questions == 1
    store.is_away = False
    await clock.advance(1.0)
    await attempts.require(owner, has_key=False)
    assert store.questions == 2


async def test_an_end_is_not_forgotten_for_what_the_store_said_before(
    attempts: LiveAttempts, store: Hesitant, clock: FakeClock, owner: Owner
) -> None:
    store.gate.clear()
    asking = asyncio.create_task(attempts.require(owner, has_key=True))
    await clock.until_waiting(2)
    attempts.end(owner)
    store.gate.set()
    for call in (asking, attempts.require(owner, has_key=True)):
        with pytest.raises(Refused, match=r"has ended; only a live attempt"):
            await call


async def _unfinished(proxy: LLMProxy, rollout: AttemptedRollout, path: str) -> Callable[[], Any]:
    """Begin a request whose body is not all there; return what sends the rest and reads the answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    base = f"/rollout/{rollout.rollout_id}/attempt/{rollout.attempt.attempt_id}"
    body = b'{"reward": 1, "model": "small", "messages": []}' if path != REPORT_PATH else b'{"reward": 1}'
    head = f"POST {base}{path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
    writer.write(head.encode() + body[:5])
    await writer.drain()

    async def finish() -> bytes:
        writer.write(body[5:])
        answer = await reader.read()
        writer.close()
        await writer.wait_closed()
        return answer

    return finish


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/audio/speech", REPORT_PATH])
async def test_what_was_still_being_sent_at_the_end_of_its_attempt_is_too_late(
    make_proxy: MakeProxy, engine: FakeEngine, store: Hesitant, http: aiohttp.ClientSession, path: str
) -> None:
    proxy = await make_proxy(engine, allow_paths=["audio"])
    rollout = await store.start_rollout({})
    finish = await _unfinished(proxy, rollout, path)
    async with Agent(http, proxy, rollout).chat() as response:  # which the proxy has read after the head of the other
        assert response.status == 200
    await proxy.flush(rollout.rollout_id, rollout.attempt.attempt_id)
    answer = await asyncio.wait_for(finish(), 20)
    assert answer.startswith(b"HTTP/1.1 403")
    assert b"attempt_not_live" in answer
    assert len(engine.received) == 1
    assert len(await store.query_spans(rollout.rollout_id)) == 1


async def test_no_question_outlives_the_proxy(attempts: LiveAttempts, store: Hesitant, owner: Owner) -> None:
    store.gate.clear()
    waiting = asyncio.create_task(attempts.require(owner, has_key=False))
    for _ in range(3):  # until the store is asked
        await asyncio.sleep(0)
    assert store.questions == 1
    await attempts.aclose()
    assert asyncio.all_tasks() <= {waiting, asyncio.current_task()}
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
