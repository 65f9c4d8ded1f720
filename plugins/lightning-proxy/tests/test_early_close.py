"""An agent that closes a stream when the answer is complete has hung up on nothing."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from lightning_proxy.testing import FakeEngine
from proxy_fixtures import Agent

from lightning_core.adapter import TraceToTrajectories

PATHS = {"/chat/completions": {"messages": [{"role": "user", "content": "hi"}]}, "/completions": {"prompt": "hi"}}


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


async def close_after(agent: Agent, path: str, finished: int, **fields: Any) -> None:
    """Read a stream up to so many finish reasons."""
    async with agent.post(path, stream=True, **PATHS[path], **fields) as response:
        while finished:
            finished -= b'"finish_reason":"stop"' in await response.content.readuntil(b"\n\n")
        response.close()


@pytest.mark.usefixtures("vllm")
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("asks_for_all", [False, True])
async def test_a_stream_that_is_closed_at_the_finish_reason_is_a_call_to_learn_from(
    agent: Agent, engine: FakeEngine, path: str, asks_for_all: bool
) -> None:
    held_after(engine, 1)
    every = {"return_token_ids": True, "logprobs": 1, "stream_options": {"include_usage": True}}
    if asks_for_all:  # so that the bytes of the engine pass as they are
        async with agent.post(path, stream=True, **PATHS[path], **every) as response:
            while b'"finish_reason": "stop"' not in await response.content.readuntil(b"\n\n"):
                continue
            response.close()
    else:
        await close_after(agent, path, 1)
    await asyncio.wait_for(engine.cancelled.wait(), 20)
    span = await agent.span()
    assert span.status.status_code == "OK"
    assert "error.type" not in span.attributes
    assert span.attributes["gen_ai.response.finish_reasons"] == ["stop"]
    assert span.attributes["response_token_ids"] == [111, 107]
    assert len(TraceToTrajectories().adapt([span]).rows) == 1
    status = await agent.proxy.status()
    assert (status["failed"], status["hung_up"]) == (0, 0)
