"""Anthropic's messages in front of an engine that speaks chat: their own client, and the rows that chat leaves."""

import json
from typing import Any

import aiohttp
import pytest
from lightning_proxy.testing import FakeEngine
from lightning_proxy.tokens import TokensBackend
from proxy_fixtures import Agent, MakeProxy
from token_engine import END, PAIR, Engine, Letters, StreamingEngine

from lightning_core.store import InMemoryLightningStore
from lightning_core.types import AttemptedRollout, Span

anthropic = pytest.importorskip("anthropic")

both_ways = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
engines = pytest.mark.parametrize("engine_type", [Engine, StreamingEngine])

PARAMETERS = {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}}
TOOLS = [{"name": "add", "description": "adds", "input_schema": PARAMETERS}]
CHAT_TOOLS = [
    {"type": "function", "function": {"name": "add", "description": "adds", "parameters": PARAMETERS}},
]
CALLS = '<tool_call>{"name": "add", "arguments": {"b": 2, "a": 1.0}}</tool_call>'


def answers() -> list[list[int] | str]:
    """A text that the tokenizer would cut in another way, two calls of tools with a text before them, and the end."""
    return [[PAIR, ord("c"), END], "so: " + CALLS + CALLS, "three", [ord("l"), PAIR]]


class Client:
    """Anthropic's client, for one attempt."""

    def __init__(self, agent: Agent) -> None:
        base = agent.base.removesuffix("/v1")
        self._client = anthropic.AsyncAnthropic(base_url=base, api_key="none", max_retries=0)

    async def __aenter__(self) -> "Client":
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._client.close()

    async def ask(self, stream: bool, **fields: Any) -> Any:
        asked = {"model": "small", "max_tokens": 50, **fields}
        if not stream:
            return await self._client.messages.create(**asked)
        async with self._client.messages.stream(**asked) as streamed:
            return await streamed.get_final_message()


async def tokens_agent(
    make_proxy: MakeProxy, http: aiohttp.ClientSession, attempt: AttemptedRollout, engine: Engine
) -> Agent:
    proxy = await make_proxy()
    proxy.update_model_list([{"model_name": "small", "backend": TokensBackend(engine, Letters())}])
    return Agent(http, proxy, attempt)


def tokens_of(spans: list[Span]) -> list[list[Any]]:
    names = ("prompt_token_ids", "response_token_ids", "response_logprobs")
    return [[span.attributes[name] for name in names] for span in spans]


def result(call: Any, content: str, **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call.id, "content": content, **more}


async def converse_in_messages(client: Client, stream: bool) -> list[Any]:
    said: list[Any] = [{"role": "user", "content": "hi"}]
    asked: dict[str, Any] = {"system": "be good", "tools": TOOLS}
    found = []
    for more in ("and 1 + 2?", None, "again"):
        answer = await client.ask(stream, messages=said, **asked)
        found.append(answer)
        calls = [block for block in answer.content if block.type == "tool_use"]
        said.append({"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in answer.content]})
        results = [result(call, "3", **({"is_error": True} if place else {})) for place, call in enumerate(calls)]
        texts = [] if more is None else [{"type": "text", "text": more}]
        said.append({"role": "user", "content": [*results, *texts]})
    found.append(await client.ask(stream, messages=said, **asked))
    return found


async def converse_in_chat(agent: Agent) -> None:
    said: list[Any] = [{"role": "system", "content": "be good"}, {"role": "user", "content": "hi"}]
    for more in ("and 1 + 2?", None, "again", ""):
        async with agent.post("/chat/completions", messages=said, tools=CHAT_TOOLS, max_tokens=50) as response:
            message = (await response.json())["choices"][0]["message"]
        said.append(message)
        said += [
            {"role": "tool", "tool_call_id": call["id"], "content": "3"} for call in message.get("tool_calls") or ()
        ]
        said += [] if more is None else [{"role": "user", "content": more}]


@both_ways
@engines
async def test_a_conversation_with_tools_leaves_the_rows_of_the_same_one_by_chat(
    make_proxy: MakeProxy,
    http: aiohttp.ClientSession,
    store: InMemoryLightningStore,
    stream: bool,
    engine_type: type[Engine],
) -> None:
    agent = await tokens_agent(make_proxy, http, await store.start_rollout({}), engine_type(*answers()))
    async with Client(agent) as client:
        found = await converse_in_messages(client, stream)
    by_chat = await tokens_agent(make_proxy, http, await store.start_rollout({}), engine_type(*answers()))
    await converse_in_chat(by_chat)
    spans = await agent.spans()
    assert tokens_of(spans) == tokens_of(await by_chat.spans())
    assert spans[0].attributes["response_token_ids"] == [PAIR, ord("c"), END]
    assert [span.attributes["agentlightning.has_token_ids"] for span in spans] == [True] * 4
    first, second, third, _ = (span.attributes for span in spans)
    assert second["prompt_token_ids"][: len(first["prompt_token_ids"]) + 3] == [
        *first["prompt_token_ids"],
        *first["response_token_ids"],
    ]
    assert third["prompt_token_ids"][: len(second["prompt_token_ids"])] == second["prompt_token_ids"]
    assert [answer.stop_reason for answer in found] == ["end_turn", "tool_use", "end_turn", "max_tokens"]
    assert found[0].content[0].text == "abc"
    text, *calls = found[1].content
    assert text.text.strip() == "so:"
    assert [(call.name, call.input) for call in calls] == [("add", {"a": 1.0, "b": 2})] * 2
    assert len({call.id for call in calls}) == 2
    assert found[0].usage.input_tokens == len(first["prompt_token_ids"])
    assert found[0].usage.output_tokens == 3
    said = json.loads(str(spans[0].attributes["gen_ai.system_instructions"]))
    assert said == [{"type": "text", "content": "be good"}]


@pytest.fixture
async def converted(
    make_proxy: MakeProxy, engine: FakeEngine, http: aiohttp.ClientSession, attempt: AttemptedRollout
) -> Agent:
    return Agent(http, await make_proxy(engine, params={"return_token_ids": True}), attempt)


def asks(**more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 50, **more}


async def test_an_engine_of_which_tokens_are_wanted_is_asked_for_chat(converted: Agent, engine: FakeEngine) -> None:
    engine.replies = [{"content": "fine", "reasoning_content": "hm"}]
    headers = {"anthropic-beta": "x", "anthropic-version": "2023-06-01"}
    async with converted.post("/messages?beta=true", headers=headers, **asks()) as response:
        answer = await response.json()
    assert [block["type"] for block in answer["content"]] == ["thinking", "text"]
    (received,) = engine.received
    assert received.path == "/v1/chat/completions"
    assert not {name.lower() for name in received.headers} & headers.keys()
    span = await converted.span()
    assert span.attributes["agentlightning.has_token_ids"] is True
    assert span.attributes["gen_ai.provider.name"] == "anthropic"


async def test_an_engine_of_which_none_are_wanted_is_asked_as_the_agent_asks(agent: Agent, engine: FakeEngine) -> None:
    async with agent.post("/messages", **asks()) as response:
        assert response.status == 200
    assert engine.received[0].path == "/v1/messages"


@both_ways
async def test_a_field_that_chat_does_not_have_is_refused_before_the_engine_is_asked(
    converted: Agent, engine: FakeEngine, stream: bool
) -> None:
    tool = {"type": "web_search_20250305", "name": "web_search"}
    async with converted.post("/messages", **asks(stream=stream, tools=[tool])) as response:
        assert response.status == 400
        error = await response.json()
    assert error["type"] == "error"
    assert error["error"]["type"] == "invalid_request_error"
    assert "tools[0].type is 'web_search_20250305'" in error["error"]["message"]
    assert not engine.received
    assert (await converted.span()).attributes["error.type"] == "not_convertible"


async def test_an_error_of_the_engine_comes_in_the_form_of_messages(converted: Agent, engine: FakeEngine) -> None:
    engine.faults = [400]
    async with converted.post("/messages", **asks()) as response:
        assert response.status == 400
        error = await response.json()
    assert error["error"]["type"] == "invalid_request_error"
    assert "told to answer 400" in error["error"]["message"]


async def test_a_stream_that_breaks_off_ends_with_the_error_of_messages(converted: Agent, engine: FakeEngine) -> None:
    engine.faults = ["dies_mid_stream"]
    async with Client(converted) as client:
        with pytest.raises(anthropic.APIStatusError, match="backend_broke"):
            await client.ask(True, **asks())
    assert (await converted.span()).attributes["error.type"] == "backend_broke"


async def test_the_first_call_without_the_wanted_tokens_is_told_of(
    converted: Agent, engine: FakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    engine.gives_tokens = False
    for path in ("/messages", "/chat/completions"):
        async with converted.post(path, **asks()) as response:
            assert response.status == 200
    told = [record for record in caplog.records if "lightning.call_without_tokens" in record.getMessage()]
    assert len(told) == 1
    assert "leaves no training row" in told[0].getMessage()
    assert [span.attributes["agentlightning.has_token_ids"] for span in await converted.spans()] == [False, False]
