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
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from lightning_proxy.admit import Spending, UsageSoFar
from lightning_proxy.answer import Answer, AnswerChoice
from lightning_proxy.call import Call, Outcome, Route
from lightning_proxy.testing import FakeEngine
from proxy_fixtures import Agent, MakeProxy, Serve, status_of

from lightning_core.budget import Budget, Reserve
from lightning_core.errors import BudgetExhausted
from lightning_core.types import AttemptedRollout


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
        ({"max_output_tokens": 7}, (10, 7)),
        ({"max_tokens": 7, "prompt": ["a", "b"]}, (10, 14)),
        ({"max_tokens": 7, "prompt": [1, 2, 3]}, (10, 7)),
        ({"max_tokens": "7"}, (10, 4096)),
        ({"max_tokens": -7}, (10, 4096)),
    ],
)
def test_the_reserve_of_a_call(fields: dict[str, Any], most: tuple[int, int]) -> None:
    assert UsageSoFar().most("m", fields, b"x" * 30) == most


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

    async def call() -> int:
        async with agent.chat(max_tokens=20) as response:
            return response.status

    statuses = Counter(await asyncio.gather(*(call() for _ in range(60))))
    assert 0.02 < agent.budget.used["usd"] <= 0.05
    assert statuses == {200: len(engine.received), 402: 60 - len(engine.received)}


async def test_a_pause_and_a_wait_for_the_budget_go_together(serve: Serve, engine: FakeEngine) -> None:
    agent = await serve(budget={"tokens": 60})
    engine.hold = asyncio.Event()

    async def call() -> int:
        async with agent.chat(max_tokens=10) as response:
            return response.status

    calls = [asyncio.create_task(call())]
    await asyncio.wait_for(engine.began.wait(), 20)
    calls.append(asyncio.create_task(call()))
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


async def test_a_stream_of_anthropic_that_is_broken_off_costs_all_that_came(
    make_proxy: MakeProxy, attempt: AttemptedRollout, http: Any
) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        # As Anthropic: the first event tells of one token, and only the last one of all.
        usage = {"input_tokens": 9, "output_tokens": 1}
        message = {"id": "m", "type": "message", "role": "assistant", "content": [], "usage": usage}
        block = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
        said = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "x" * 4000}}
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for event in ({"type": "message_start", "message": message}, block, said):
            await response.write(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())
        await asyncio.Event().wait()
        return response

    app = web.Application()
    app.router.add_post("/v1/messages", answer)
    async with TestServer(app, handler_cancellation=True) as server:
        params = {"model": "openai/small", "api_base": str(server.make_url("/v1")), **PRICES}
        entry = {"model_name": "small", "litellm_params": params}
        proxy = await make_proxy(model_list=[entry], budget={"usd": 1_000_000})
        agent = Agent(http, proxy, attempt)
        asked = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2000}
        response = await agent.post("/messages", stream=True, **asked).__aenter__()
        await response.content.readuntil(b"x" * 4000)
        response.close()
        span = await agent.span()
    assert span.attributes["error.type"] == "client_disconnected"
    assert span.attributes["gen_ai.usage.cost"] == 9 + 1 * 100  # as it was told: a record has no estimates
    assert proxy.budget is not None
    assert (proxy.budget.used["usd"], proxy.budget.used["tokens"]) == (9 + 1000 * 100, 9 + 1000)


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


@pytest.mark.parametrize("path", ["/chat/completions", "/images/generations"])
async def test_a_call_that_ends_before_another_try_costs_nothing(
    make_proxy: MakeProxy, engine: FakeEngine, attempt: AttemptedRollout, http: Any, path: str
) -> None:
    budget = Budget(tokens=10_000)
    options = {"first_retry_seconds": 30, "flush_grace_seconds": 0, "allow_paths": ["images"]}
    proxy = await make_proxy(engine, params=PRICES, budget=budget, **options)
    await engine.stop()
    call = asyncio.create_task(Agent(http, proxy, attempt).post(path, messages=[]).__aenter__())
    async with asyncio.timeout(20):
        while (await proxy.status())["replicas"][0]["is_up"]:  # noqa: ASYNC110  # nobody is told of it
            await asyncio.sleep(0.001)
    await proxy.flush(attempt.rollout_id, attempt.attempt.attempt_id)
    assert (await (await call).json())["error"]["code"] == "call_aborted"
    assert (budget.used["calls"], budget.used["tokens"], budget.used["usd"], budget.unpriced_calls) == (1, 0, 0, 0)
