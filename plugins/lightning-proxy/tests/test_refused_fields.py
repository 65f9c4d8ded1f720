"""What a backend refuses of what the proxy asks besides the agent costs that call its tokens, and nothing else."""

import logging
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from lightning_proxy.testing import FakeEngine
from proxy_fixtures import Agent, MakeProxy

from lightning_core.store import InMemoryLightningStore

TOKENS = "return_token_ids"

pytestmark = pytest.mark.usefixtures("vllm")


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


async def test_tokens_that_were_said_to_be_there_are_always_asked_for_and_missed_aloud(
    make_proxy: MakeProxy,
    picky: Picky,
    store: InMemoryLightningStore,
    http: aiohttp.ClientSession,
    caplog: pytest.LogCaptureFixture,
) -> None:
    proxy = await make_proxy(picky)
    picky.unknown = (TOKENS,)
    for _ in range(4):
        assert not await has_tokens(http, proxy, store)
    assert picky.asked() == [True, False] * 4
    assert [TOKENS in each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING] == [True]
