"""Whatever goes wrong, the agent gets an answer that it understands, and the call is recorded as what it was."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from lightning_proxy.testing import FakeEngine
from proxy_fixtures import Agent, Serve, answering, held, status_of

from lightning_core.adapter import TraceToTrajectories
from lightning_core.types import AttemptedRollout


@pytest.mark.parametrize("path", ["/chat/completions", "/messages", "/responses", "/embeddings"])
@pytest.mark.parametrize(
    ("error", "status"),
    [({"message": "no provider is left", "code": 429}, 429), ("no provider is left", 502)],
    ids=["with a status", "a text"],
)
async def test_an_error_of_status_200_is_a_call_that_failed(
    agent: Agent, engine: FakeEngine, path: str, error: Any, status: int
) -> None:
    answering(engine, {"error": error})
    async with agent.post(path, messages=[{"role": "user", "content": "hi"}]) as response:
        assert (response.status, await response.json()) == (status, {"error": error})
    span = await agent.span()
    assert span.attributes["error.type"] == "backend_error"
    assert span.status.description == "no provider is left"
    assert (await agent.proxy.status())["failed"] == 1


async def test_a_backend_that_never_answers_is_a_timeout(serve: Serve, engine: FakeEngine) -> None:
    agent = await serve(params={"timeout": 0.05})
    engine.faults = ["never"]
    async with agent.chat() as response:
        error = (await response.json())["error"]
    assert (response.status, error["code"]) == (504, "backend_timeout")
    assert response.headers["x-should-retry"] == "false"
    assert "did not answer within 0.05 s" in error["message"]
    await asyncio.wait_for(engine.cancelled.wait(), 20)
    assert (await agent.span()).attributes["error.type"] == "backend_timeout"


@pytest.mark.usefixtures("vllm")
@pytest.mark.parametrize(
    ("fault", "said"),
    [("dies_mid_stream", "broke off its answer"), ("ends_early", "ended its stream before the answer was complete")],
)
async def test_a_stream_that_breaks_off_says_so_to_the_agent(
    agent: Agent, engine: FakeEngine, fault: Any, said: str
) -> None:
    engine.faults = [fault]
    async with agent.chat(stream=True) as response:
        text = await response.text()
    assert response.status == 200
    last = json.loads(text.strip().split("\n\n")[-1].removeprefix("data: "))
    assert last["error"]["code"] == "backend_broke"
    assert said in last["error"]["message"]
    assert "[DONE]" not in text
    span = await agent.span()
    assert span.attributes["error.type"] == "backend_broke"
    assert span.attributes["response_token_ids"] == [111]
    assert len(engine.received) == 1


@pytest.mark.parametrize(("asked", "error"), [(1, None), (2, "backend_broke")])
async def test_a_stream_that_ends_after_one_of_two_answers_broke_off(
    agent: Agent, engine: FakeEngine, asked: int, error: str | None
) -> None:
    choice = {"index": 0, "delta": {"content": "ok"}, "finish_reason": "stop"}
    answering(engine, f"data: {json.dumps({'choices': [choice]})}\n\n", kind="text/event-stream")
    async with agent.chat(stream=True, n=asked) as response:
        text = await response.text()
    assert ("ended its stream before the answer was complete" in text) == (error is not None)
    assert (await agent.span()).attributes.get("error.type") == error


@pytest.mark.parametrize("status", [429, 502, 503, 504])
async def test_what_may_go_better_is_tried_again_and_recorded_once(
    serve: Serve, engine: FakeEngine, status: int
) -> None:
    agent = await serve()
    engine.faults = [status] * 2
    assert await status_of(agent.chat()) == 200
    assert len(engine.received) == 3
    assert (await agent.span()).attributes["agentlightning.tries"] == 3


@pytest.mark.parametrize("stream", [False, True])
async def test_an_agent_that_hangs_up_cancels_the_backends_call(agent: Agent, engine: FakeEngine, stream: bool) -> None:
    engine.hold = asyncio.Event()
    async with aiohttp.ClientSession() as own:
        agent.http = own
        call = asyncio.create_task(status_of(agent.chat(stream=stream)))
        await engine.began.wait()
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
    if stream:  # a server notices with the next piece
        engine.hold.set()
    await asyncio.wait_for(engine.cancelled.wait(), 20) if not stream else None
    span = await agent.span()
    assert span.attributes["error.type"] == "client_disconnected"
    assert (await agent.proxy.status())["in_flight"] == 0


async def test_the_end_of_an_attempt_cuts_off_what_is_under_way(
    serve: Serve, engine: FakeEngine, attempt: AttemptedRollout
) -> None:
    agent = await serve()
    call = await held(engine, agent.chat())
    await agent.proxy.flush(attempt.rollout_id, attempt.attempt.attempt_id)
    response = await call
    assert response.status == 503
    assert "the attempt has ended" in (await response.json())["error"]["message"]
    assert (await agent.span()).attributes["error.type"] == "call_aborted"
    async with agent.chat() as refused:
        assert refused.status == 403
        assert "has ended" in (await refused.json())["error"]["message"]


async def test_a_slow_reader_slows_only_itself_and_is_not_read_ahead_without_limit(
    serve: Serve, engine: FakeEngine
) -> None:
    agent = await serve()
    engine.replies = ["x" * 200_000, "ok"]
    slow = await agent.chat(stream=True).__aenter__()  # reads nothing but the beginning
    await slow.content.readuntil(b"\n\n")
    for _ in range(5):
        assert await status_of(agent.chat()) == 200
    assert engine.pieces_written < 200_000
    slow.close()
    spans = await agent.spans()
    assert [span.status.status_code for span in spans] == ["ERROR", *["OK"] * 5]


def held_after(engine: FakeEngine, finished: int) -> None:
    """Let the engine say no more of a stream after so many finish reasons, until the agent is gone."""
    send = engine._send

    async def held(request: Any, fields: Any, chunks: AsyncIterator[dict[str, Any]]) -> Any:
        async def until_finished() -> AsyncIterator[dict[str, Any]]:
            left = finished
            async for chunk in chunks:
                yield chunk
                left -= any(choice["finish_reason"] for choice in chunk["choices"])
                if not left:
                    await asyncio.Event().wait()

        return await send(request, fields, until_finished())

    engine._send = held  # type: ignore[method-assign]


@pytest.mark.usefixtures("vllm")
@pytest.mark.parametrize("asks_for_all", [False, True])
async def test_a_stream_that_is_closed_at_the_finish_reason_is_a_call_to_learn_from(
    agent: Agent, engine: FakeEngine, asks_for_all: bool
) -> None:
    held_after(engine, 1)
    # With all of these the bytes of the engine pass as they are.
    every = {"return_token_ids": True, "logprobs": 1, "stream_options": {"include_usage": True}}
    async with agent.chat(stream=True, **(every if asks_for_all else {})) as response:
        while not re.search(rb'"finish_reason": ?"stop"', await response.content.readuntil(b"\n\n")):
            continue
        response.close()
    await asyncio.wait_for(engine.cancelled.wait(), 20)
    span = await agent.span()
    assert span.status.status_code == "OK"
    assert "error.type" not in span.attributes
    assert span.attributes["gen_ai.response.finish_reasons"] == ["stop"]
    assert span.attributes["response_token_ids"] == [111, 107]
    assert len(TraceToTrajectories().adapt([span]).rows) == 1
    status = await agent.proxy.status()
    assert (status["failed"], status["hung_up"]) == (0, 0)
