"""`vllm-tokens` in front of a real vLLM: ten turns are one row. `real_vllm` says where it runs."""

import json
import sys
from collections.abc import Iterator
from typing import Any

import aiohttp
import openai
import pytest
from proxy_fixtures import Agent, MakeProxy
from real_vllm import MARKS, Vllm, served_vllm

from lightning_core.adapter import TraceToTrajectories
from lightning_core.types import AttemptedRollout

pytestmark = MARKS

PARAMETERS = {
    "type": "object",
    "properties": {"a": {"type": "integer", "enum": [1, 2]}},
    "required": ["a"],
    "additionalProperties": False,
}
TOOL: Any = {"type": "function", "function": {"name": "add", "strict": True, "parameters": PARAMETERS}}


@pytest.fixture(scope="module")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vllm]:
    with served_vllm(tmp_path_factory.mktemp("vllm")) as served:
        yield served


@pytest.fixture
async def agent(make_proxy: MakeProxy, vllm: Vllm, attempt: AttemptedRollout, http: aiohttp.ClientSession) -> Agent:
    pytest.importorskip("transformers")
    proxy = await make_proxy()
    params = {"model": "small", "api_base": vllm.url, "tokenizer": str(vllm.model)}
    proxy.update_model_list([{"model_name": "small", "backend": "vllm-tokens", "litellm_params": params}])
    return Agent(http, proxy, attempt)


async def whole(client: openai.AsyncOpenAI, asked: Any) -> dict[str, Any]:
    found = (await client.chat.completions.create(**asked)).choices[0].message
    return found.model_dump(exclude_none=True)


async def streamed(client: openai.AsyncOpenAI, asked: Any) -> dict[str, Any]:
    text, calls = "", []
    async for chunk in await client.chat.completions.create(**asked, stream=True):
        text += chunk.choices[0].delta.content or ""
        calls += [call.model_dump() for call in chunk.choices[0].delta.tool_calls or ()]
    return {"role": "assistant", "content": text, **({"tool_calls": calls} if calls else {})}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_ten_turns_with_a_forced_call_are_one_row(agent: Agent, stream: bool) -> None:
    said: Any = []
    async with openai.AsyncOpenAI(base_url=agent.base, api_key="none", max_retries=0, timeout=300) as client:
        for turn in range(10):
            said.append({"role": "user", "content": f"say some words {turn}"})
            choice: Any = "required" if turn == 4 else "none"
            asked: Any = {"model": "small", "messages": said, "tools": [TOOL], "tool_choice": choice}
            # A random model says white space forever where the schema allows it, but for this.
            asked |= {"max_tokens": 150 if turn == 4 else 20, "seed": turn, "frequency_penalty": 2.0}
            message = await (streamed if stream else whole)(client, asked)
            said.append(message)
            for call in message.get("tool_calls", ()):
                assert json.loads(call["function"]["arguments"])["a"] in (1, 2)
                said.append({"role": "tool", "tool_call_id": call["id"], "content": "3"})
    assert sum(message["role"] == "tool" for message in said) == 1
    found = TraceToTrajectories().adapt(await agent.spans())
    assert (len(found.rows), found.refused) == (1, ())
    (row,) = found.rows
    assert None not in [logprob for logprob, mask in zip(row.logprobs, row.mask, strict=True) if mask]
    print("tokens", len(row.prompt_ids) + len(row.response_ids), "sampled", sum(row.mask), file=sys.stderr)


async def test_a_conversation_that_is_too_long_is_refused_in_known_words(agent: Agent) -> None:
    async with agent.chat("word " * 2000) as response:
        assert response.status == 400
        assert "maximum context length is 2048 tokens" in (await response.json())["error"]["message"]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_a_refusal_of_vllm_is_the_agents(agent: Agent, stream: bool) -> None:
    async with agent.post("/completions", prompt=[999_999], stream=stream) as response:
        assert response.status == 400
        assert "out of vocabulary" in await response.text()
