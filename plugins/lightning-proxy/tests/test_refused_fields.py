"""One odd call does not end the asking for tokens: a backend has to refuse what it does not know more than once."""

import logging
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from lightning_proxy.replicas import RefusedFields
from lightning_proxy.testing import FakeEngine
from proxy_fixtures import Agent, MakeProxy, model

from lightning_core.store import InMemoryLightningStore
from lightning_core.testing import FakeClock

TOKENS = "return_token_ids"


@pytest.fixture
def fields() -> RefusedFields:
    return RefusedFields()


class TestRefusedFields:
    def test_one_call_says_nothing_however_often_it_is_made(self, fields: RefusedFields) -> None:
        for _ in range(3):
            assert fields.refuse([TOKENS], ("at-1", b"{}"), 0.0) == set()
        assert fields.at(0.0) == set()

    @pytest.mark.parametrize("other", [("at-2", b"{}"), ("at-1", b"[]")], ids=["attempt", "request"])
    def test_two_calls_do(self, fields: RefusedFields, other: tuple[str, bytes]) -> None:
        fields.refuse([TOKENS], ("at-1", b"{}"), 0.0)
        assert fields.refuse([TOKENS], other, 1.0) == {TOKENS}
        assert fields.at(60.9) == {TOKENS}

    def test_it_is_asked_again_after_a_minute_and_told_of_once(self, fields: RefusedFields) -> None:
        for body in (b"1", b"2"):
            fields.refuse([TOKENS], body, 0.0)
        assert fields.at(60.0) == set()
        assert fields.refuse([TOKENS], b"3", 60.0) == set()
        assert fields.at(119.0) == {TOKENS}

    def test_what_was_ever_taken_is_refused_to_a_call_and_not_to_others(self, fields: RefusedFields) -> None:
        fields.refuse([TOKENS], b"1", 0.0)
        fields.take([TOKENS])
        for body in (b"2", b"3", b"4"):
            assert fields.refuse([TOKENS], body, 1.0) == set()
        assert fields.at(1.0) == set()

    def test_what_is_always_asked_is_told_of_once_a_minute(self) -> None:
        fields = RefusedFields(frozenset({TOKENS}))
        fields.take([TOKENS])
        told = [bool(fields.refuse([TOKENS], second, second)) for second in (0.0, 1.0, 59.0, 60.0, 61.0)]
        assert told == [True, False, False, True, False]
        assert fields.at(61.0) == set()


class Picky(FakeEngine):
    """Refuses fields that agents do not send: always, or with a beam search alone."""

    unknown: tuple[str, ...] = ()

    async def _fail(self, request: web.Request, fields: dict[str, Any], fault: Any) -> web.StreamResponse | None:
        unknown = next((name for name in self.unknown if name in fields), None)
        if fields.get("use_beam_search") and TOKENS in fields:
            unknown = TOKENS
        if unknown is not None:
            return web.json_response({"error": {"message": f"{unknown} cannot be had"}}, status=400)
        return await super()._fail(request, fields, fault)

    def asked(self) -> list[bool]:
        return [TOKENS in received.fields for received in self.received]


@pytest.fixture
async def picky() -> AsyncIterator[Picky]:
    async with Picky() as engine:
        yield engine


async def has_tokens(http: aiohttp.ClientSession, proxy: Any, store: InMemoryLightningStore, **fields: Any) -> bool:
    """Make a call of an attempt of its own."""
    agent = Agent(http, proxy, await store.start_rollout({}))
    async with agent.chat(**fields) as response:
        assert response.status == 200
    return bool((await agent.span()).attributes["agentlightning.has_token_ids"])


async def test_odd_calls_cost_no_other_call_its_tokens(
    make_proxy: MakeProxy, picky: Picky, store: InMemoryLightningStore, http: aiohttp.ClientSession
) -> None:
    proxy = await make_proxy(picky)
    got = [await has_tokens(http, proxy, store)]
    got += [await has_tokens(http, proxy, store, use_beam_search=True) for _ in range(3)]
    got += [await has_tokens(http, proxy, store)]
    assert got == [True, False, False, False, True]


async def test_a_backend_that_knows_no_tokens_is_asked_once_a_minute(
    make_proxy: MakeProxy,
    picky: Picky,
    store: InMemoryLightningStore,
    http: aiohttp.ClientSession,
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = FakeClock()
    proxy = await make_proxy(picky, clock=clock)
    picky.unknown = (TOKENS,)
    for _ in range(4):
        assert not await has_tokens(http, proxy, store)
    assert picky.asked() == [True, False, True, False, False, False]
    await clock.advance(61)
    picky.received.clear()
    for _ in range(2):
        assert not await has_tokens(http, proxy, store)
    assert picky.asked() == [True, False, False]
    warned = [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]
    assert len(warned) == 1
    assert f"lightning.backend_refuses_fields backend=127.0.0.1:{picky.port} fields={TOKENS};" in warned[0]
    picky.unknown = ()
    proxy.update_model_list([model(picky)])  # the same, and yet it may be another engine
    assert await has_tokens(http, proxy, store)


async def test_fields_that_are_refused_one_after_the_other_are_all_left_out(
    make_proxy: MakeProxy, picky: Picky, store: InMemoryLightningStore, http: aiohttp.ClientSession
) -> None:
    picky.unknown = ("stream_options", "logprobs", TOKENS)
    assert not await has_tokens(http, await make_proxy(picky), store, stream=True)


async def test_tokens_that_were_said_to_be_there_are_always_asked_for_and_missed_aloud(
    make_proxy: MakeProxy,
    picky: Picky,
    store: InMemoryLightningStore,
    http: aiohttp.ClientSession,
    caplog: pytest.LogCaptureFixture,
) -> None:
    proxy = await make_proxy(picky, params={TOKENS: True})
    picky.unknown = (TOKENS,)
    for _ in range(4):
        assert not await has_tokens(http, proxy, store)
    assert picky.asked() == [True, False] * 4
    assert [TOKENS in each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING] == [True]
