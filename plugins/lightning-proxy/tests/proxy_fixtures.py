import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from lightning_proxy import LLMProxy, send
from lightning_proxy.openai_backend import OpenAIBackend
from lightning_proxy.testing import FakeEngine

from lightning_core.budget import Budget
from lightning_core.registry import default_registry
from lightning_core.store import InMemoryLightningStore
from lightning_core.types import AttemptedRollout, Span

MakeProxy = Callable[..., Awaitable[LLMProxy]]


@pytest.fixture(autouse=True)
def installed_backends() -> Iterator[None]:
    with default_registry().register("backends", "openai", OpenAIBackend):
        yield


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(send, "FIRST_PAUSE_SECONDS", 0.001)


@pytest.fixture
def slow_retries(monkeypatch: pytest.MonkeyPatch, quick_retries: None) -> None:
    monkeypatch.setattr(send, "FIRST_PAUSE_SECONDS", 30.0)


@pytest.fixture
def store() -> InMemoryLightningStore:
    return InMemoryLightningStore()


@pytest.fixture
async def engine() -> AsyncIterator[FakeEngine]:
    async with FakeEngine() as engine:
        yield engine


_provider = "openai"


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models are vLLM's: they give token ids, and calls of other APIs are made chat's."""
    monkeypatch.setitem(globals(), "_provider", "hosted_vllm")


def model(engine: FakeEngine, name: str = "small", **params: Any) -> dict[str, Any]:
    """An entry of the model list that leads to an engine."""
    return {"model_name": name, "litellm_params": {"model": f"{_provider}/{name}", "api_base": engine.url, **params}}


@pytest.fixture
async def make_proxy(store: InMemoryLightningStore) -> AsyncIterator[MakeProxy]:
    started: list[LLMProxy] = []

    async def make(*engines: FakeEngine, params: dict[str, Any] | None = None, **options: Any) -> LLMProxy:
        models = [model(engine, **(params or {})) for engine in engines]
        proxy = LLMProxy(**{"model_list": models, "store": store, "launch_mode": "asyncio", "key": "", **options})
        await proxy.start()
        started.append(proxy)
        return proxy

    yield make
    for proxy in started:
        await proxy.stop()


@pytest.fixture
async def proxy(make_proxy: MakeProxy, engine: FakeEngine) -> LLMProxy:
    return await make_proxy(engine)


@pytest.fixture
async def attempt(store: InMemoryLightningStore) -> AttemptedRollout:
    return await store.start_rollout({"question": 1})


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=20)) as session:
        yield session
    await asyncio.sleep(0)


async def status_of(call: Any) -> int:
    """Make a call, and return the status of its answer, which is read."""
    async with call as response:
        await response.read()
        return int(response.status)


async def refusal(call: Any) -> tuple[int, Any]:
    """Make a call that is refused, and return the status and the error's code."""
    async with call as response:
        return response.status, (await response.json())["error"]["code"]


async def refused(call: Any, status: int, code: str | None = None) -> str:
    """Make a call that is refused with this status and code, and return the message."""
    async with call as response:
        assert response.status == status, await response.text()
        error = (await response.json())["error"]
    assert code is None or error["code"] == code
    return str(error["message"])


async def held(engine: FakeEngine, call: Any) -> "asyncio.Task[aiohttp.ClientResponse]":
    """Make a call, and return it when the engine has it, which holds it until `engine.hold` is set."""
    engine.hold = asyncio.Event()
    made = asyncio.create_task(call.__aenter__())
    await engine.began.wait()
    return made


def answering(
    engine: FakeEngine,
    said: Any,
    *,
    status: int = 200,
    kind: str = "application/json",
    times: int = 1000,
    **headers: str,
) -> None:
    """Let the engine answer its next calls with this, a text or what JSON says."""
    left = [times]
    body = said if isinstance(said, str) else json.dumps(said)

    async def answer(*_: Any) -> web.Response | None:
        left[0] -= 1
        if left[0] < 0:
            return None
        return web.Response(status=status, text=body, content_type=kind, headers=headers)

    engine._fail = answer  # type: ignore[assignment,method-assign]


class Agent:
    """Calls the proxy for one attempt."""

    def __init__(self, http: aiohttp.ClientSession, proxy: LLMProxy, rollout: AttemptedRollout) -> None:
        self.http = http
        self.proxy = proxy
        self.rollout = rollout
        self.base = proxy.as_resource(model="small").get_base_url(rollout.rollout_id, rollout.attempt.attempt_id)

    @property
    def budget(self) -> Budget:
        assert self.proxy.budget is not None
        return self.proxy.budget

    def post(self, path: str, **fields: Any) -> Any:
        headers = fields.pop("headers", None)
        return self.http.post(f"{self.base}{path}", json={"model": "small", **fields}, headers=headers)

    def chat(self, text: str = "hi", **fields: Any) -> Any:
        return self.post("/chat/completions", **{"messages": [{"role": "user", "content": text}], **fields})

    async def another(self) -> "Agent":
        """The agent of another attempt."""
        assert self.proxy.store is not None
        return Agent(self.http, self.proxy, await self.proxy.store.start_rollout({}))

    async def spans(self) -> list[Span]:
        """The recorded calls, when the store has them."""
        rollout_id, attempt_id = self.rollout.rollout_id, self.rollout.attempt.attempt_id
        await self.proxy.flush(rollout_id, attempt_id, end=False)
        assert self.proxy.store is not None
        return list(await self.proxy.store.query_spans(rollout_id, attempt_id))

    async def span(self) -> Span:
        (span,) = await self.spans()
        return span


Serve = Callable[..., Awaitable[Agent]]
"""Starts a proxy with these options, in front of the engine unless told otherwise; returns the attempt's agent."""


@pytest.fixture
def serve(make_proxy: MakeProxy, engine: FakeEngine, http: aiohttp.ClientSession, attempt: AttemptedRollout) -> Serve:
    async def serve(*engines: FakeEngine, **options: Any) -> Agent:
        leads_elsewhere = engines or "model_list" in options
        return Agent(http, await make_proxy(*(engines if leads_elsewhere else (engine,)), **options), attempt)

    return serve


@pytest.fixture
def agent(http: aiohttp.ClientSession, proxy: LLMProxy, attempt: AttemptedRollout) -> Agent:
    return Agent(http, proxy, attempt)
