"""The proxy in front of a real vLLM: what it records is what the engine says of itself. See `real_vllm`."""

import json
import sys
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest
from proxy_fixtures import Serve
from real_vllm import MARKS, Vllm, served_vllm

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
