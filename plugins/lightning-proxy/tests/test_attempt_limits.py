"""What one attempt may use: when a limit is reached, no further call of it starts."""

import asyncio
from typing import Any

import openai
import pytest
from lightning_proxy import LLMProxy
from lightning_proxy.testing import FakeEngine
from proxy_fixtures import Agent, MakeProxy, Serve, status_of

from lightning_core.adapter import read_usage
from lightning_core.agent import rollout
from lightning_core.algorithm.own_calls import own_calls
from lightning_core.errors import ConfigError
from lightning_core.store import InMemoryLightningStore
from lightning_core.trainer import Trainer
from lightning_core.types import LLM

USER: Any = [{"role": "user", "content": "hi"}]
USED_UP = r"the attempt's limit of 2 calls is used up \(2 calls by now\), which attempt_limits of the proxy sets"


async def test_a_call_beyond_the_limit_is_refused_and_the_client_does_not_repeat_it(
    serve: Serve, store: InMemoryLightningStore, http: Any
) -> None:
    agent = await serve(attempt_limits={"calls": 2})
    async with openai.AsyncOpenAI(base_url=agent.base, api_key="none", max_retries=3) as client:
        for _ in range(2):
            await client.chat.completions.create(model="small", messages=USER)
        with pytest.raises(openai.PermissionDeniedError, match=USED_UP) as raised:
            await client.chat.completions.create(model="small", messages=USER)
    assert raised.value.code == "attempt_limit_reached"
    assert raised.value.response.headers["x-should-retry"] == "false"
    spans = await agent.spans()
    assert [span.attributes.get("error.type") for span in spans] == [None, None, "attempt_limit_reached"]
    assert read_usage(spans).calls == 2
    other = Agent(http, agent.proxy, await store.start_rollout({"question": 2}))
    assert await status_of(other.chat()) == 200


async def test_tokens_and_time_are_limits_too(serve: Serve) -> None:
    agent = await serve(attempt_limits={"tokens": 40})
    for status, kind in ((200, None), (403, "permission_error")):
        async with agent.post("/messages", messages=USER, max_tokens=5) as response:
            assert (response.status, (await response.json()).get("error", {}).get("type")) == (status, kind)

    agent = await serve(attempt_limits={"seconds": 0.01})
    async with agent.chat() as response:
        assert response.status == 200
    await asyncio.sleep(0.02)
    async with agent.chat() as response:
        assert "limit of 0.01 seconds is used up" in (await response.json())["error"]["message"]


async def test_what_is_not_the_agents_own_call_does_not_count(
    serve: Serve, store: InMemoryLightningStore, http: Any
) -> None:
    agent = await serve(attempt_limits={"calls": 1})
    judge = agent.base.replace("/v1", "/judge/v1")
    for _ in range(2):
        async with http.post(f"{judge}/chat/completions", json={"model": "small", "messages": USER}) as response:
            assert response.status == 200
        async with agent.post("/messages/count_tokens", messages=USER) as response:
            assert response.status == 201
    async with own_calls(store, agent.proxy, algorithm="mine") as llm:
        for _ in range(3):
            async with http.post(
                f"{llm.endpoint}/chat/completions", json={"model": "small", "messages": USER}
            ) as response:
                assert response.status == 200
    for status in (200, 403):
        async with agent.chat() as response:
            assert response.status == status


@rollout
async def talkative(task: str, llm: LLM) -> float:
    async with openai.AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key or "none") as client:
        for _ in range(3):
            try:
                await client.chat.completions.create(model=llm.model, messages=USER)
            except openai.PermissionDeniedError as exc:
                if task == "bears it":
                    return 0.5
                if task == "hides it":
                    raise ValueError("no answer") from exc
                raise
    return 1.0


async def test_the_cause_of_the_attempt_says_so(
    make_proxy: MakeProxy, engine: FakeEngine, store: InMemoryLightningStore
) -> None:
    proxy = await make_proxy(engine, attempt_limits={"calls": 2}, launch_mode="thread")
    trainer = Trainer(algorithm="baseline", store=store, llm_proxy=proxy, n_runners=1)
    result = await trainer.fit_async(talkative, ["raises it", "hides it", "bears it"])
    assert (result.rollouts.succeeded, result.rollouts.failed) == (1, 2)
    failures = {}
    for each in await store.query_rollouts():
        (tried,) = await store.query_attempts(each.rollout_id)
        failures[each.input] = (tried.metadata or {}).get("failure")
        assert (tried.metadata or {})["usage"]["calls"] == 2
    assert failures["bears it"] is None
    for task in ("raises it", "hides it"):
        assert failures[task]["type"] == "AttemptLimitReached"
        assert failures[task]["message"].startswith(USED_UP.replace("\\", ""))
        assert "test_attempt_limits.py" in failures[task]["where"]


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"call": 3}, r"attempt_limits\.call .*there is no such key"),
        ({"calls": 0}, r"attempt_limits\.calls .*more than 0"),
        ({"tokens": "many"}, r"attempt_limits\.tokens .*a whole number"),
        (5, "attempt_limits is 5; .*a mapping"),
    ],
)
def test_a_wrong_limit_is_named(limits: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LLMProxy(allow_unattributed=True, attempt_limits=limits)
