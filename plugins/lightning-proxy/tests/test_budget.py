"""A hard limit for a run: when it is reached, no further call starts."""

import asyncio
import json
import math
import random
import time
from collections import Counter
from contextlib import suppress
from typing import Any

import aiohttp
import openai
import pytest
from lightning_proxy import LLMProxy
from lightning_proxy.admit import Spending, UsageSoFar
from lightning_proxy.answer import Answer, AnswerChoice
from lightning_proxy.apis.chat import ChatDialect
from lightning_proxy.call import Call, Outcome, Route
from lightning_proxy.testing import FakeEngine
from proxy_fixtures import Agent, MakeProxy, Serve, refused, status_of

from lightning_core.adapter import read_usage
from lightning_core.agent import rollout
from lightning_core.algorithm.own_calls import own_calls
from lightning_core.budget import Budget, Reserve
from lightning_core.errors import BudgetExhausted, ConfigError
from lightning_core.store import InMemoryLightningStore
from lightning_core.trainer import Trainer
from lightning_core.types import LLM, AttemptedRollout


def tool_call(arguments: str) -> dict[str, Any]:
    return {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}


async def over_spent(seed: int, limit: float) -> tuple[float, float]:
    """Run a random schedule of parallel calls; return by how much they passed the limit and their reserves."""
    chance = random.Random(seed)
    budget = Budget(tokens=limit, usd=limit / 100)
    spending = Spending(budget, None)
    errors = [0.0]

    async def agent() -> None:
        with suppress(BudgetExhausted):
            for _ in range(chance.randint(1, 6)):
                most = chance.randint(1, 60)
                used = chance.randint(0, most) if chance.random() < 0.95 else most + chance.randint(1, 30)
                started = await spending.start_call(None, lambda most=most: Reserve(most, most / 100))
                for _ in range(chance.randint(0, 5)):
                    await asyncio.sleep(0)
                errors.append(used - most)
                started.settle(tokens=used, usd=used / 100)

    await asyncio.gather(*(agent() for _ in range(chance.randint(2, 20))))
    assert budget.used["usd"] == pytest.approx(budget.used["tokens"] / 100)
    return budget.used["tokens"] - limit, sum(error for error in errors if error > 0)


async def test_parallel_calls_pass_a_limit_at_most_by_what_exceeded_its_reserve() -> None:
    for seed in range(300):
        over, errors = await over_spent(seed, limit=200)
        assert over <= errors, seed


async def test_a_call_that_is_cancelled_while_it_waits_holds_nothing() -> None:
    budget = Budget(tokens=100)
    spending = Spending(budget, None)
    first = await spending.start_call(None, lambda: Reserve(100))
    waiting = [asyncio.create_task(spending.start_call(None, lambda: Reserve(100))) for _ in range(2)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    first.settle(tokens=0, usd=0.0)
    second = await asyncio.wait_for(waiting[1], 20)
    second.settle(tokens=100, usd=0.0)
    assert (budget.used["calls"], budget.reached) == (2, "tokens")


@pytest.mark.parametrize(
    ("fields", "most"),
    [
        ({}, (10, 4096)),
        ({"max_tokens": 7}, (10, 7)),
        ({"max_completion_tokens": 7, "n": 3}, (10, 21)),
        ({"max_completion_tokens": 1, "max_tokens": 7}, (10, 7)),
        ({"max_output_tokens": 7}, (10, 4096)),
        ({"max_tokens": 7, "prompt": ["a", "b"]}, (10, 14)),
        ({"max_tokens": 7, "prompt": [1, 2, 3]}, (10, 7)),
        ({"max_tokens": "7"}, (10, 4096)),
        ({"max_tokens": -7}, (10, 4096)),
    ],
)
def test_the_reserve_of_a_call(fields: dict[str, Any], most: tuple[int, int]) -> None:
    limits = ChatDialect.names["max_tokens"]
    assert UsageSoFar().most("m", fields, b"x" * 30, limits) == most


def test_what_a_model_answered_before_is_the_reserve_of_the_next_call() -> None:
    usage = UsageSoFar()
    usage.record("m", 500, 40)
    usage.record("m", 90, 25)
    assert usage.most("m", {}, b"x" * 30) == (10, 40)
    assert usage.most("m", {"previous_response_id": "r"}, b"x" * 30) == (500, 40)
    assert usage.most("other", {}, b"x" * 30) == (10, 4096)


def test_an_image_counts_as_one_and_not_by_its_size() -> None:
    body = b'{"url": "data:image/png;base64,' + b"A" * 1_000_000 + b'"}'
    given, _ = UsageSoFar().most("m", {}, body)
    assert 1600 < given < 1620


def test_a_body_of_long_words_does_not_keep_the_event_loop() -> None:
    body = b'{"text": "base64 ' + (b"A" * 1000 + b" ") * 8000 + b'"}'
    began = time.process_time()
    UsageSoFar().most("m", {}, body)
    assert time.process_time() - began < 1  # from each character on, it was 4 s


async def test_sixty_calls_at_once_do_not_pass_a_limit_of_money(serve: Serve, engine: FakeEngine) -> None:
    prices = {"input_cost_per_token": 0.0001, "output_cost_per_token": 0.001}
    agent = await serve(params=prices, budget={"usd": 0.05})

    statuses = Counter(await asyncio.gather(*(status_of(agent.chat(max_tokens=20)) for _ in range(60))))
    assert 0.02 < agent.budget.used["usd"] <= 0.05
    assert statuses == {200: len(engine.received), 402: 60 - len(engine.received)}


async def test_a_pause_and_a_wait_for_the_budget_go_together(serve: Serve, engine: FakeEngine) -> None:
    agent = await serve(budget={"tokens": 60})
    engine.hold = asyncio.Event()

    calls = [asyncio.create_task(status_of(agent.chat(max_tokens=10)))]
    await asyncio.wait_for(engine.began.wait(), 20)
    calls.append(asyncio.create_task(status_of(agent.chat(max_tokens=10))))
    while not (await agent.proxy.status())["waiting"]:  # noqa: ASYNC110  # it waits for the first
        await asyncio.sleep(0)
    await agent.proxy.pause()
    draining = asyncio.create_task(agent.proxy.drain())
    engine.hold.set()
    assert (await asyncio.wait_for(draining, 20)).aborted == 0
    assert len(engine.received) == 1
    await agent.proxy.resume()
    assert await asyncio.wait_for(asyncio.gather(*calls), 20) == [200, 200]


async def test_the_proxy_refuses_calls_beyond_it_and_no_client_tries_again(serve: Serve, engine: FakeEngine) -> None:
    agent = await serve(budget={"tokens": 50})
    for _ in range(2):
        assert await status_of(agent.chat(max_tokens=10)) == 200
    async with agent.chat(max_tokens=10) as response:
        error = (await response.json())["error"]
    assert (response.status, error["code"]) == (402, "budget_exhausted")
    assert response.headers["x-should-retry"] == "false"
    assert error["message"].startswith("the run's budget of 50 tokens leaves too little for another call (18 tokens by")
    assert error["message"].endswith("; it may use 39 tokens, and less with a smaller max_tokens")
    assert len(engine.received) == 2
    assert agent.budget.reached == "tokens"
    assert (await agent.spans())[-1].attributes["error.type"] == "budget_exhausted"


PRICES = {"input_cost_per_token": 1.0, "output_cost_per_token": 100.0}


async def test_a_call_that_the_agent_gave_up_counts_by_an_estimate(serve: Serve, engine: FakeEngine, http: Any) -> None:
    agent = await serve(params=PRICES, budget={"tokens": 10_000})
    engine.hold = asyncio.Event()
    async with aiohttp.ClientSession() as own:
        agent.http = own
        call = asyncio.create_task(agent.chat().__aenter__())
        await engine.began.wait()
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
    await asyncio.wait_for(engine.cancelled.wait(), 20)
    span = await agent.span()
    sent = len(json.dumps({"model": "small", "messages": [{"role": "user", "content": "hi"}]}))
    assert agent.budget.used["tokens"] == math.ceil(sent / 4)
    assert agent.budget.used["usd"] == math.ceil(sent / 4)
    assert agent.budget.unpriced_calls == 0
    assert "gen_ai.usage.cost" not in span.attributes
    assert "gen_ai.usage.input_tokens" not in span.attributes


@pytest.mark.parametrize(
    ("answer", "error", "spent"),
    [
        (Answer(input_tokens=3, output_tokens=5), None, (3, 5)),
        (Answer(input_tokens=3, output_tokens=0), None, (3, 0)),
        (Answer(), None, (25, 0)),
        (Answer(choices=[AnswerChoice("x" * 9)]), None, (25, 3)),
        (Answer(choices=[AnswerChoice("x" * 9, token_ids=[1, 2]), AnswerChoice("xx")]), None, (25, 3)),
        (Answer(prompt_token_ids=[1], choices=[AnswerChoice("x" * 9, token_ids=[1, 2])]), None, (1, 2)),
        (Answer(choices=[AnswerChoice(reasoning="x" * 4, tool_calls=[tool_call("{}  ")])]), None, (25, 2)),
        (Answer(choices=[AnswerChoice(tool_calls=[{"type": "custom", "custom": {"input": "x" * 9}}])]), None, (25, 3)),
        (Answer(choices=[AnswerChoice("x" * 4, tool_calls=[{"type": "other"}])]), None, (25, 1)),
        # Anthropic's streams tell of few tokens when they begin, and of all when they end.
        (Answer(input_tokens=3, output_tokens=1, choices=[AnswerChoice("x" * 40)]), "client_disconnected", (3, 10)),
        (Answer(input_tokens=3, output_tokens=1, choices=[AnswerChoice("x" * 40)]), None, (3, 1)),
    ],
)
def test_what_nobody_told_is_estimated_and_nothing_else(
    answer: Answer, error: str | None, spent: tuple[int, int]
) -> None:
    request: Any = None  # none is needed to count
    call = Call(request, "", route=Route(body=b"x" * 99), outcome=Outcome(answer, error_kind=error))
    assert call.estimated_tokens() == spent


async def test_what_passes_through_counts_as_a_call_without_a_price(serve: Serve, engine: FakeEngine) -> None:
    agent = await serve(params=PRICES, budget={"usd": 5, "calls": 2}, num_retries=0, allow_paths=["images"])
    assert await status_of(agent.post("/images/generations")) == 201
    await engine.stop()
    assert await status_of(agent.post("/images/generations")) == 503
    assert await status_of(agent.post("/images/generations")) == 402
    assert (agent.budget.used["calls"], agent.budget.unpriced_calls) == (2, 1)
    assert (await agent.proxy.status())["calls"] == 3


@pytest.mark.usefixtures("slow_retries")
@pytest.mark.parametrize("path", ["/chat/completions", "/images/generations"])
async def test_a_call_that_ends_before_another_try_costs_nothing(
    serve: Serve, engine: FakeEngine, attempt: AttemptedRollout, path: str
) -> None:
    budget = Budget(tokens=10_000)
    agent = await serve(params=PRICES, budget=budget, allow_paths=["images"])
    proxy = agent.proxy
    await engine.stop()
    call = asyncio.create_task(agent.post(path, messages=[]).__aenter__())
    async with asyncio.timeout(20):
        while (await proxy.status())["replicas"][0]["is_up"]:  # noqa: ASYNC110  # nobody is told of it
            await asyncio.sleep(0.001)
    await proxy.flush(attempt.rollout_id, attempt.attempt.attempt_id)
    assert (await (await call).json())["error"]["code"] == "call_aborted"
    assert (budget.used["calls"], budget.used["tokens"], budget.used["usd"], budget.unpriced_calls) == (1, 0, 0, 0)


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
    assert await status_of(agent.chat()) == 200
    await asyncio.sleep(0.02)
    assert "limit of 0.01 seconds is used up" in await refused(agent.chat(), 403)


async def test_what_is_not_the_agents_own_call_does_not_count(
    serve: Serve, store: InMemoryLightningStore, http: Any
) -> None:
    agent = await serve(attempt_limits={"calls": 1})
    judge, asked = agent.base.replace("/v1", "/judge/v1"), {"model": "small", "messages": USER}
    for _ in range(2):
        assert await status_of(http.post(f"{judge}/chat/completions", json=asked)) == 200
        assert await status_of(agent.post("/messages/count_tokens", messages=USER)) == 201
    async with own_calls(store, agent.proxy, algorithm="mine") as llm:
        for _ in range(3):
            assert await status_of(http.post(f"{llm.endpoint}/chat/completions", json=asked)) == 200
    for status in (200, 403):
        assert await status_of(agent.chat()) == status


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
        assert "test_budget.py" in failures[task]["where"]


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
