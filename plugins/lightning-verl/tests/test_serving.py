"""The policy behind a proxy of the trainer's, which has limits and models of its own."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from lightning_proxy import LLMProxy
from lightning_verl.serving import Serving
from toy_policy import Letters, policy

from lightning_core.store import InMemoryLightningStore
from lightning_core.testing import FakeClock

HOUR = 3600.0


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def proxy(clock: FakeClock) -> AsyncIterator[LLMProxy]:
    options: dict[str, Any] = {"allow_unattributed": True, "launch_mode": "asyncio"}
    proxy = LLMProxy(store=InMemoryLightningStore(), key="", clock=clock, **options)
    await proxy.start()
    yield proxy
    await proxy.stop()


@pytest.fixture
def serving(proxy: LLMProxy) -> Serving:
    assert proxy.store is not None
    return Serving(proxy.store, proxy=proxy, key="k")


async def answer(proxy: LLMProxy, content: str = "hi", **more: Any) -> tuple[int, Any]:
    body = {"model": "tiny", "messages": [{"role": "user", "content": content}], **more}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{proxy.url}/v1/chat/completions", json=body) as response,
    ):
        return response.status, await response.json()


async def test_calls_wait_for_new_weights_however_short_the_proxy_s_own_pause_is(
    proxy: LLMProxy, serving: Serving, clock: FakeClock
) -> None:
    tokenizer = Letters()
    await serving.start(policy(tokenizer=tokenizer))
    await serving.pause()
    call = asyncio.create_task(answer(proxy))
    await clock.until_waiting()
    await clock.advance(HOUR)
    assert not call.done()
    await serving.resume(1)
    assert (await call)[0] == 200
    assert tokenizer.options["enable_thinking"] is False
    await proxy.pause()  # as anybody else
    call = asyncio.create_task(answer(proxy))
    await clock.until_waiting()
    await clock.advance(60)
    assert (await call)[0] == 503


async def test_a_conversation_that_fills_the_context_is_refused_in_openai_s_words(
    proxy: LLMProxy, serving: Serving
) -> None:
    await serving.start(policy())
    status, told = await answer(proxy, "a" * 95, max_tokens=50)
    assert (status, told["error"]["code"]) == (400, "context_length_exceeded")
    assert told["error"]["message"] == (
        "This model's maximum context length is 100 tokens, and the prompt has 100 input tokens; make it shorter"
    )
    status, told = await answer(proxy, "a" * 94, max_tokens=50)
    assert (status, told["choices"][0]["message"]["content"]) == (200, "ok")


async def test_a_name_stands_for_the_policy_where_agents_are_given_it_for_that(clock: FakeClock) -> None:
    engine = {"litellm_params": {"api_base": "http://127.0.0.1:1/v1"}}
    models = [{"model_name": name, **engine} for name in ("tiny", "base", "judge")]
    store = InMemoryLightningStore()
    proxy = LLMProxy(store=store, key="", clock=clock, model_list=models, launch_mode="asyncio")
    serving = Serving(store, proxy=proxy, key="k")
    await serving.start(policy())
    serving.measure("base")
    assert serving.other_models("tiny", "base") == {"judge"}
    assert [entry["model_name"] for entry in proxy.model_list] == ["judge", "tiny", "base"], "each leads to one model"
    assert serving.other_models("tiny", "tiny") == {"base", "judge"}
    await proxy.stop()


async def test_the_trainer_s_proxy_takes_calls_again_where_the_run_ended_while_the_model_learned(
    proxy: LLMProxy, serving: Serving
) -> None:
    await serving.start(policy())
    await serving.pause()
    await serving.stop()
    status = await proxy.status()
    assert status["is_paused"] is False
    assert status["replicas"] == [], "the model is not there any more"


class Endless:
    """verl's client, whose answer comes to no end by itself."""

    def __init__(self) -> None:
        self.began = asyncio.Event()
        self.was_cancelled = False

    async def generate(self, request_id: str, **_: Any) -> Any:
        self.began.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.was_cancelled = True


async def test_calls_that_do_not_end_are_cut_off_before_the_servers_sleep(
    proxy: LLMProxy, serving: Serving, clock: FakeClock
) -> None:
    endless = Endless()
    await serving.start(policy(endless))
    call = asyncio.create_task(answer(proxy))
    await endless.began.wait()
    draining = asyncio.create_task(serving.pause(drain_seconds=30))
    await clock.until_waiting()
    assert not endless.was_cancelled
    await clock.advance(30)
    await draining
    assert endless.was_cancelled
    assert (await call)[0] == 503
