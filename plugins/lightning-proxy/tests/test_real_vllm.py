"""The proxy in front of a real vLLM: what it records is what the engine says of itself. See `real_vllm`."""

import json
import sys
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest
from four_apis import by_chat, by_messages, by_responses
from proxy_fixtures import Agent, MakeProxy, Serve
from real_vllm import MARKS, Vllm, served_vllm

from lightning_core.store import InMemoryLightningStore

pytestmark = MARKS

_TOKENS = ("prompt_token_ids", "response_token_ids", "response_logprobs")
FIELDS: dict[str, Any] = {"model": "small", "max_tokens": 6, "temperature": 0.0}
MESSAGES = [{"role": "user", "content": "say some words"}]


@pytest.fixture(scope="module")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vllm]:
    with served_vllm(tmp_path_factory.mktemp("vllm")) as served:
        yield served


async def asked_directly(http: aiohttp.ClientSession, vllm: Vllm, path: str, **fields: Any) -> dict[str, Any]:
    body = {**FIELDS, **fields, "return_token_ids": True}
    async with http.post(f"{vllm.url}{path}", json=body, timeout=aiohttp.ClientTimeout(total=300)) as response:
        assert response.status == 200, await response.text()
        answer: dict[str, Any] = await response.json()
    return answer


@pytest.mark.parametrize("stream", [False, True])
async def test_chat_is_recorded_with_the_tokens_and_logprobs_that_the_engine_gives(
    serve: Serve, vllm: Vllm, http: aiohttp.ClientSession, stream: bool
) -> None:
    direct = await asked_directly(http, vllm, "/chat/completions", messages=MESSAGES, logprobs=True)
    (choice,) = direct["choices"]
    agent = await serve(vllm, params={"return_token_ids": True})
    async with agent.post("/chat/completions", **FIELDS | {"messages": MESSAGES, "stream": stream}) as response:
        assert response.status == 200, await response.text()
        text = await response.text()
    assert "token_ids" not in text
    assert "usage" not in text if stream else json.loads(text)["choices"][0]["logprobs"] is None
    span = await agent.span()
    print(f"stream={stream}", {name: span.attributes[name] for name in _TOKENS}, file=sys.stderr)
    assert span.attributes["prompt_token_ids"] == direct["prompt_token_ids"]
    assert span.attributes["response_token_ids"] == choice["token_ids"]
    assert len(choice["token_ids"]) == FIELDS["max_tokens"]
    expected = [entry["logprob"] for entry in choice["logprobs"]["content"]]
    assert span.attributes["response_logprobs"] == pytest.approx(expected, abs=1e-3)
    assert span.attributes["agentlightning.has_token_ids"] is True
    assert span.attributes["gen_ai.usage.input_tokens"] == direct["usage"]["prompt_tokens"]
    assert span.attributes["gen_ai.usage.output_tokens"] == direct["usage"]["completion_tokens"]
    assert span.attributes["gen_ai.response.finish_reasons"] == ["length"]


TURNS = [{"say": "say some words"}, {"say": "add 1", "forced": True}, {"results": ["2"]}]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("talk", [by_messages, by_responses])
async def test_other_apis_leave_the_rows_of_the_same_conversation_by_chat(
    make_proxy: MakeProxy,
    vllm: Vllm,
    store: InMemoryLightningStore,
    http: aiohttp.ClientSession,
    stream: bool,
    talk: Any,
) -> None:
    proxy = await make_proxy(vllm, params={"return_token_ids": True})  # type: ignore[arg-type]
    # A random model says the same token forever, and so never ends the call that it is made to make, but for this.
    fields = {"max_tokens": 150, "extra_body": {"temperature": 0.0, "frequency_penalty": 2.0}}
    chat = Agent(http, proxy, await store.start_rollout({}))
    said = await by_chat(chat, TURNS, **fields)
    other = Agent(http, proxy, await store.start_rollout({}))
    await talk(other, TURNS, stream=stream, **fields)
    assert len(said[1]["tool_calls"]) == 1
    expected, found = await chat.spans(), await other.spans()
    assert len(expected) == len(found) == 3
    for one, two in zip(expected, found, strict=True):
        for name in ("prompt_token_ids", "response_token_ids"):
            assert two.attributes[name] == one.attributes[name]
        assert two.attributes["response_logprobs"] == pytest.approx(one.attributes["response_logprobs"], abs=1e-3)
        assert two.attributes["agentlightning.has_token_ids"] is True
    print(talk.__name__, stream, [len(span.attributes["response_token_ids"]) for span in found], file=sys.stderr)
