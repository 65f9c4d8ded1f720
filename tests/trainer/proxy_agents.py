"""Agents that call a model, where other processes can import them."""

import asyncio
import urllib.error
import urllib.request
from json import dumps, loads
from typing import Any

from lightning_proxy.testing import FakeEngine

from lightning_core import LLM, rollout


def call(llm: LLM, text: str) -> str:
    """Ask a model, with nothing but the standard library."""
    messages = [{"role": "user", "content": text}]
    body = dumps({"model": llm.model, "messages": messages, "max_tokens": 10}).encode()
    headers = {"content-type": "application/json", "authorization": f"Bearer {llm.api_key}"}
    request = urllib.request.Request(f"{llm.endpoint}/chat/completions", body, headers)
    try:
        with urllib.request.urlopen(request) as answer:
            return str(loads(answer.read())["choices"][0]["message"]["content"])
    except urllib.error.HTTPError as exc:
        exc.close()
        raise


@rollout
async def ask(task: Any, llm: LLM) -> float:
    return float(await asyncio.to_thread(call, llm, str(task)) == "ok")


@rollout
async def ask_and_bear(task: Any, llm: LLM) -> float:
    """Give a reward also where the model is refused."""
    try:
        return float(await asyncio.to_thread(call, llm, str(task)) == "ok")
    except urllib.error.HTTPError:
        return 0.0


def one_waits(engine: FakeEngine) -> Any:
    """Make an agent that is cut off at `first`, which asks once and waits; at other tasks it asks until it is refused.

    Of an engine whose first fault is `never`, it waits in that call; else after it.
    """

    @rollout
    async def agent(task: Any, llm: LLM) -> float:
        if task == "first":
            await asyncio.to_thread(call, llm, "first")
            await asyncio.Event().wait()
        await engine.began.wait()
        while True:
            await asyncio.to_thread(call, llm, str(task))

    return agent


async def judge(result: Any, llm: LLM) -> float:
    """A grader: the score is what the model says."""
    return float(await asyncio.to_thread(call, llm, f"How good is {result}?"))
