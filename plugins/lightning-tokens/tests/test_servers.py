"""Engines behind HTTP: prompts are token ids and go on exactly; what goes wrong is as with any server."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from lightning_proxy.testing import FakeEngine
from lightning_tokens import VllmTokens
from proxy_fixtures import Agent, MakeProxy
from token_engine import Letters, converse

from lightning_core.adapter import TraceToTrajectories
from lightning_core.errors import ConfigError
from lightning_core.types import AttemptedRollout

both_ways = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
PRETRAINED: Any = Letters()
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]


class Sglang:
    """Answers `/generate` as SGLang does: events have all tokens so far, or only new ones."""

    def __init__(self, *, is_incremental: bool) -> None:
        self.is_incremental = is_incremental
        self.received: list[dict[str, Any]] = []
        self.replies: list[str] = []
        self.error: str | None = None
        self.app = web.Application()
        self.app.router.add_post("/generate", self._generate)
        self.url = ""

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        fields = await request.json()
        self.received.append(fields)
        if self.error is not None:
            return web.json_response({"error": {"message": self.error}}, status=400)
        ids = [*map(ord, self.replies.pop(0)), 1]
        if not fields.get("stream"):
            return web.json_response(self._answer(fields, ids, 0, len(ids)))
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        ends = [*range(2, len(ids), 2), len(ids)]
        for start, end in zip([0, *ends], ends, strict=False):
            answer = self._answer(fields, ids, start if self.is_incremental else 0, end)
            await response.write(b"data: " + json.dumps(answer).encode() + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        return response

    def _answer(self, fields: dict[str, Any], ids: list[int], start: int, end: int) -> dict[str, Any]:
        pairs = [[-token / 1000, token, None] for token in ids[start:end]]
        meta = {
            "id": "1",
            "finish_reason": {"type": "stop", "matched": 1} if end == len(ids) else None,
            "prompt_tokens": len(fields["input_ids"]),
            "completion_tokens": end,
            "input_token_logprobs": [],
            "output_token_logprobs": pairs,
            "output_token_logprobs_length": end,
        }
        return {"text": "", "output_ids": ids[start:end], "meta_info": meta}


@pytest.fixture(params=[False, True], ids=["cumulative", "incremental"])
async def sglang(request: pytest.FixtureRequest) -> AsyncIterator[Sglang]:
    server = Sglang(is_incremental=request.param)
    async with TestServer(server.app) as served:
        server.url = f"http://127.0.0.1:{served.port}"
        yield server


@pytest.fixture
def make(make_proxy: MakeProxy, http: Any, attempt: AttemptedRollout) -> Any:
    async def make(*bases: str, backend: str = "vllm-tokens", retries: int = 0, **options: Any) -> Agent:
        proxy = await make_proxy(num_retries=retries)
        params = {"model": "small", "tokenizer": PRETRAINED, **options}
        entries = [
            {"model_name": "small", "backend": backend, "litellm_params": {**params, "api_base": base}}
            for base in bases
        ]
        proxy.update_model_list(entries)
        return Agent(http, proxy, attempt)

    return make


@both_ways
async def test_ten_turns_with_vllm_are_one_row(make: Any, engine: FakeEngine, stream: bool) -> None:
    engine.replies = [f"answer {turn}\x01" for turn in range(10)]
    agent = await make(engine.url)
    await converse(agent, 10, stream, max_tokens=50, temperature=0.5)
    found = TraceToTrajectories().adapt(await agent.spans())
    assert (len(found.rows), found.refused) == (1, ())
    (row,) = found.rows
    assert None not in [logprob for logprob, mask in zip(row.logprobs, row.mask, strict=True) if mask]
    first, *_, last = (call.fields for call in engine.received)
    assert first == {
        "model": "small",
        "prompt": [*map(ord, "u:q0\x01\na:")],
        "return_token_ids": True,
        "logprobs": 0,
        "max_tokens": 50,
        "temperature": 0.5,
        **({"stream": True} if stream else {}),
    }
    assert [*row.prompt_ids, *row.response_ids][: len(last["prompt"])] == last["prompt"]


async def test_an_answer_of_vllm_has_the_room_that_there_is(make: Any, engine: FakeEngine) -> None:
    engine.max_model_len = 60
    engine.replies = ["a" * 100]
    agent = await make(engine.url)
    for fields in ({}, {"max_tokens": 5000}):
        async with agent.chat(**fields) as response:
            assert (await response.json())["choices"][0]["finish_reason"] == "length"
    assert [call.fields["max_tokens"] for call in engine.received] == [60 - 8] * 2


@both_ways
@pytest.mark.parametrize("path", ["/chat/completions", "/messages"])
async def test_a_conversation_that_is_too_long_is_refused_in_known_words(
    make: Any, engine: FakeEngine, stream: bool, path: str
) -> None:
    engine.max_model_len = 60
    agent = await make(engine.url)
    said = [{"role": "user", "content": "a" * 100}]
    async with agent.post(path, messages=said, max_tokens=5, stream=stream) as response:
        assert response.status == 400
        message = (await response.json())["error"]["message"]
    expected = "prompt is too long: 106 tokens > 60 maximum" if path == "/messages" else "maximum context length is 60"
    assert expected in message


@both_ways
async def test_vllm_is_given_schemas(make: Any, engine: FakeEngine, stream: bool) -> None:
    engine.replies = ['{"name": "add", "arguments": {}}']
    agent = await make(engine.url)
    async with agent.chat(tools=TOOLS, tool_choice="required", stream=stream, logit_bias={"5": 1}) as response:
        assert '"name":"add"' in await response.text()
    (call,) = engine.received
    schema = call.fields["response_format"]["json_schema"]["schema"]
    assert schema["properties"]["name"]["enum"] == ["add"]
    assert call.fields["logit_bias"] == {"5": 1}


@both_ways
@pytest.mark.parametrize("path", ["", "/v1"])
async def test_turns_with_sglang_are_one_row(make: Any, sglang: Sglang, stream: bool, path: str) -> None:
    sglang.replies = [f"answer {turn}" for turn in range(4)]
    agent = await make(f"{sglang.url}{path}", backend="sglang-tokens")
    await converse(agent, 4, stream, response_format={"type": "json_object"}, seed=3, extra_body={"top_k": 0})
    found = TraceToTrajectories().adapt(await agent.spans())
    (row,) = found.rows
    answers = [ord(letter) for turn in range(4) for letter in f"answer {turn}\x01"]
    assert [token for token, mask in zip(row.response_ids, row.mask, strict=True) if mask] == answers
    logprobs = [logprob for logprob, mask in zip(row.logprobs, row.mask, strict=True) if mask]
    assert logprobs == [-token / 1000 for token in answers]
    assert sglang.received[0]["sampling_params"] == {
        "max_new_tokens": None,
        "sampling_seed": 3,
        "top_k": -1,
        "json_schema": '{"type": "object"}',
    }
    assert sglang.received[0]["input_ids"] == [*map(ord, "u:q0\x01\na:")]


@pytest.mark.parametrize(
    "error",
    [
        "The input (106 tokens) is longer than the model's context length (60 tokens).",
        "Requested token count exceeds the model's maximum context length of 60 tokens. You requested a total of 111 "
        "tokens: 106 tokens from the input messages and 5 tokens for the completion.",
    ],
)
async def test_sglangs_words_for_a_long_conversation_are_made_known_ones(make: Any, sglang: Sglang, error: str) -> None:
    sglang.error = error
    agent = await make(sglang.url, backend="sglang-tokens")
    async with agent.chat() as response:
        assert response.status == 400
        told = (await response.json())["error"]
    assert told["code"] == "context_length_exceeded"
    assert told["message"].startswith("This model's maximum context length is 60 tokens, and the prompt has 106 input")
    async with agent.post("/messages", messages=[{"role": "user", "content": "x"}], max_tokens=5) as response:
        assert "prompt is too long: 106 tokens > 60 maximum" in await response.text()


# What goes wrong is as with `OpenAIBackend`


@both_ways
@pytest.mark.parametrize("status", [429, 503])
async def test_a_server_that_is_busy_is_asked_again(make: Any, engine: FakeEngine, stream: bool, status: int) -> None:
    engine.faults = [status]
    engine.retry_after = "0.01"
    agent = await make(engine.url, retries=2)
    async with agent.chat(stream=stream) as response:
        assert response.status == 200
        assert "ok" in (await response.text()).replace('"content":"o"', "ok")
    assert (await agent.span()).attributes["agentlightning.tries"] == 2


@both_ways
async def test_another_replica_answers_for_one_that_is_away(make: Any, engine: FakeEngine, stream: bool) -> None:
    agent = await make("http://127.0.0.1:9/v1", engine.url, retries=2)
    async with agent.chat(stream=stream) as response:
        assert response.status == 200


@both_ways
@pytest.mark.parametrize(
    ("fault", "status", "kind"),
    [
        ("dies", 503, "backend_unavailable"),
        ("never", 504, "backend_timeout"),
        ("garbage", 502, "backend_broke"),
        (500, 500, "500"),
    ],
)
async def test_a_server_that_fails_is_told_of(
    make: Any, engine: FakeEngine, stream: bool, fault: Any, status: int, kind: str
) -> None:
    engine.faults = [fault]
    agent = await make(engine.url, timeout=0.3)
    async with agent.chat(stream=stream) as response:
        assert response.status == status
    assert (await agent.span()).attributes["error.type"] == kind


@pytest.mark.parametrize("fault", ["dies_mid_stream", "ends_early"])
async def test_a_stream_that_breaks_off_ends_with_an_error(make: Any, engine: FakeEngine, fault: Any) -> None:
    engine.replies = ["abcdef"]
    engine.faults = [fault]
    agent = await make(engine.url)
    async with agent.chat(stream=True) as response:
        assert '"error"' in await response.text()
    assert (await agent.span()).attributes["error.type"] == "backend_broke"


async def test_an_agent_that_hangs_up_stops_the_sampling(make: Any, engine: FakeEngine) -> None:
    engine.replies, engine.hold = ["abc"], asyncio.Event()
    agent = await make(engine.url)
    async with agent.chat(stream=True) as response:
        await response.content.readany()
    await asyncio.wait_for(engine.cancelled.wait(), 20)


async def test_an_engine_without_token_ids_is_named(make: Any, engine: FakeEngine) -> None:
    engine.gives_tokens = False
    agent = await make(engine.url)
    async with agent.chat() as response:
        assert response.status == 502
        assert "answered without token ids, which vLLM gives from 0.10.2 on" in await response.text()


@pytest.mark.parametrize("is_begun", [False, True], ids=["at once", "after an event without tokens"])
async def test_a_refusal_in_a_streams_first_event_is_one(make: Any, is_begun: bool) -> None:
    async def models(_: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "small", "max_model_len": 99}]})

    async def completions(_: web.Request) -> web.Response:
        # So vLLM 0.32 answers a streamed prompt with a token that it does not have.
        error = {"message": "Token id 286 is out of vocabulary", "type": "BadRequestError", "param": None, "code": 400}
        empty = {"choices": [{"index": 0, "text": "", "token_ids": [], "finish_reason": None}]}
        events = [*([empty] if is_begun else []), {"error": error}]
        text = "".join(f"data: {json.dumps(event)}\n\n" for event in events)
        return web.Response(text=f"{text}data: [DONE]\n\n", content_type="text/event-stream")

    app = web.Application()
    app.router.add_get("/v1/models", models)
    app.router.add_post("/v1/completions", completions)
    async with TestServer(app) as server:
        agent = await make(str(server.make_url("/v1")))
        async with agent.chat(stream=True) as response:
            assert response.status == (200 if is_begun else 400)
            assert "out of vocabulary" in await response.text()
    assert (await agent.span()).attributes["error.type"] == ("backend_broke" if is_begun else "400")


# The tokenizer


def test_a_tokenizer_by_name_needs_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lightning_tokens.servers.find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"install lightning-tokens\[tokenizer\]"):
        VllmTokens("http://127.0.0.1:8000/v1")


async def test_a_tokenizer_that_cannot_be_loaded_is_an_error_that_names_the_option(
    make: Any, engine: FakeEngine, tmp_path: Any
) -> None:
    pytest.importorskip("transformers")
    agent = await make(engine.url, tokenizer=str(tmp_path))
    async with agent.chat() as response:
        error = (await response.json())["error"]
    assert (response.status, error["code"]) == (500, "no_tokenizer")
    assert "option tokenizer names another one" in error["message"]
