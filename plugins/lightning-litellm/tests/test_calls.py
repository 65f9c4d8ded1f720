"""The real library in front of an engine: what agents get, and what is recorded."""

import asyncio
import json
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from lightning_litellm.backend import LitellmBackend
from lightning_proxy import TokenCounts
from lightning_proxy.testing import FakeEngine, tokens_of
from litellm_agents import MakeAgent, status_of

pytestmark = [
    pytest.mark.usefixtures("nothing_left_running"),
    # The library is written for an older pydantic; what that warns of is its affair.
    pytest.mark.filterwarnings("ignore:Item '.*' on TypedDict class", "ignore:Accessing the 'model_"),
    pytest.mark.filterwarnings("ignore:Pydantic serializer warnings"),
]

CALL = {"id": "call_1", "type": "function", "function": {"name": "search", "arguments": "{}"}}


async def test_a_chat_call_is_answered_and_recorded_with_the_engines_tokens(
    make_agent: MakeAgent, engine: FakeEngine
) -> None:
    agent = await make_agent()
    async with agent.chat(max_tokens=9) as response:
        answer = await response.json()
    assert response.status == 200
    assert answer["choices"][0]["message"]["content"] == "Paris."
    assert "prompt_token_ids" not in answer
    assert "token_ids" not in answer["choices"][0]
    (received,) = engine.received
    assert received.fields["max_tokens"] == 9
    assert received.headers["Authorization"] == "Bearer sk-of-the-backend"
    span = await agent.span()
    assert span.attributes["prompt_token_ids"] == tokens_of("u:hi\na:")
    assert span.attributes["response_token_ids"] == tokens_of("Paris.")
    assert len(span.attributes["response_logprobs"]) == 6
    assert span.attributes["agentlightning.has_token_ids"] is True
    assert span.attributes["gen_ai.usage.output_tokens"] == 6
    assert "sk-of-the-backend" not in span.model_dump_json()


async def test_where_the_library_loses_tokens_of_a_stream_the_record_says_there_are_none(
    make_agent: MakeAgent,
) -> None:
    agent = await make_agent()
    async with agent.chat(stream=True) as response:
        events = (await response.text()).split("\n\n")
    assert response.status == 200
    assert events[-2] == "data: [DONE]"
    assert "token_ids" not in "".join(events)
    span = await agent.span()
    assert '"Paris."' in span.attributes["gen_ai.output.messages"]
    assert not {"prompt_token_ids", "response_token_ids"} & span.attributes.keys()
    assert span.attributes["agentlightning.has_token_ids"] is False


async def test_a_stream_comes_while_the_backend_still_writes_it(make_agent: MakeAgent, engine: FakeEngine) -> None:
    engine.hold = asyncio.Event()
    agent = await make_agent()
    for path, asked in (
        ("/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
        ("/messages", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}),
        ("/responses", {"input": "hi"}),
    ):
        engine.hold.clear()
        async with agent.post(path, stream=True, **asked) as response:
            first = await response.content.readuntil(b"\n\n")
            assert b"data: {" in first
            assert not engine.hold.is_set()
            engine.hold.set()
            assert b"Paris" not in first
            await response.read()


async def test_an_agent_that_hangs_up_cancels_the_backends_call(make_agent: MakeAgent, engine: FakeEngine) -> None:
    engine.hold = asyncio.Event()
    agent = await make_agent()
    response = await agent.chat(stream=True).__aenter__()
    await response.content.readuntil(b"\n\n")
    response.close()
    await asyncio.wait_for(engine.cancelled.wait(), 20)


@pytest.mark.parametrize("stream", [False, True])
async def test_anthropics_api_in_front_of_a_chat_endpoint(
    make_agent: MakeAgent, engine: FakeEngine, stream: bool
) -> None:
    engine.replies = [{"content": "Let me see.", "tool_calls": [CALL]}]
    agent = await make_agent()
    tool = {"name": "search", "input_schema": {"type": "object", "properties": {}}}
    messages = [{"role": "user", "content": "hi"}]
    async with agent.post("/messages", messages=messages, max_tokens=9, tools=[tool], stream=stream) as response:
        text = await response.text()
    assert response.status == 200
    assert '"tool_use"' in text
    assert engine.received[0].path == "/v1/chat/completions"
    span = await agent.span()
    assert span.attributes["gen_ai.provider.name"] == "anthropic"
    assert '"search"' in span.attributes["gen_ai.output.messages"]
    assert span.attributes["gen_ai.response.finish_reasons"] == ["tool_calls"]
    assert span.attributes["agentlightning.has_token_ids"] is not stream  # the library loses those of streams


@pytest.mark.parametrize("stream", [False, True])
async def test_openais_responses_api_in_front_of_a_chat_endpoint(
    make_agent: MakeAgent, engine: FakeEngine, stream: bool
) -> None:
    agent = await make_agent()
    async with agent.post("/responses", input="hi", instructions="Be brief.", stream=stream) as response:
        text = await response.text()
    assert response.status == 200
    last = json.loads(text.split("data: ")[-1]) if stream else {"response": json.loads(text)}
    assert last["response"]["output"][0]["content"][0]["text"] == "Paris."
    assert engine.received[0].path == "/v1/chat/completions"
    assert engine.received[0].fields["messages"][0] == {"role": "system", "content": "Be brief."}
    span = await agent.span()
    assert "Paris." in span.attributes["gen_ai.output.messages"]
    assert span.status.status_code == "OK"


async def test_embeddings_and_nothing_else(make_agent: MakeAgent) -> None:
    agent = await make_agent()
    async with agent.post("/embeddings", input="hi") as response:
        assert (await response.json())["data"][0]["embedding"] == [0.5, -0.5]
    async with agent.post("/completions", prompt="hi") as response:
        assert response.status == 404
        assert "litellm hosted_vllm/small serves" in await response.text()


class TestWhatAnAgentSays:
    async def test_never_changes_where_a_call_goes(self, make_agent: MakeAgent, engine: FakeEngine) -> None:
        agent = await make_agent()
        evil = {
            "api_base": "http://127.0.0.1:1",
            "api_key": "x",
            "custom_llm_provider": "openai",
            "mock_response": "no",
        }
        assert await status_of(agent.chat(**evil)) == 200
        (received,) = engine.received
        assert received.headers["Authorization"] == "Bearer sk-of-the-backend"

    async def test_reaches_an_openai_compatible_engine_whole(self, make_agent: MakeAgent, engine: FakeEngine) -> None:
        assert await status_of((await make_agent()).chat(min_p=0.1, chat_template_kwargs={"thinking": False})) == 200
        fields = engine.received[0].fields
        assert (fields["min_p"], fields["chat_template_kwargs"]) == (0.1, {"thinking": False})

    async def test_is_refused_where_a_provider_is_not_known_to_take_it(self, make_agent: MakeAgent) -> None:
        agent = await make_agent("anthropic/claude-sonnet-4-5")
        async with agent.chat(api_base="http://127.0.0.1:1") as response:
            assert response.status == 400
            error = (await response.json())["error"]
        assert error["code"] == "unknown_field"
        assert "'api_base' is not a field of /v1/chat/completions" in error["message"]


@pytest.mark.parametrize("path", ["/chat/completions", "/messages"])
@pytest.mark.parametrize("status", [400, 401, 404])
async def test_errors_of_the_backend_are_the_apis(
    make_agent: MakeAgent, engine: FakeEngine, path: str, status: int
) -> None:
    engine.faults = [status]
    agent = await make_agent()
    messages: Any = [{"role": "user", "content": "hi"}]
    async with agent.post(path, messages=messages, max_tokens=5) as response:
        error = await response.json()
    assert response.status == status
    assert f"told to answer {status}" in error["error"]["message"]
    assert ("type" in error) == (path == "/messages")
    assert (await agent.span()).attributes["error.type"] == str(status)


@pytest.mark.parametrize("status", [429, 503])
async def test_what_may_go_better_is_tried_again(make_agent: MakeAgent, engine: FakeEngine, status: int) -> None:
    engine.faults = [status]
    agent = await make_agent()
    assert await status_of(agent.chat()) == 200
    assert len(engine.received) == 2
    assert (await agent.span()).attributes["agentlightning.tries"] == 2


@pytest.mark.parametrize(
    ("fault", "stream", "status", "kind"),
    [
        ("garbage", False, 502, "backend_broke"),
        ("never", False, 504, "backend_timeout"),
        ("dies_mid_stream", True, 200, "backend_broke"),
    ],
)
async def test_a_backend_that_fails_is_told_of(
    make_agent: MakeAgent, engine: FakeEngine, fault: Any, stream: bool, status: int, kind: str
) -> None:
    engine.faults = [fault]
    agent = await make_agent(timeout=1.0 if fault == "never" else 20.0)
    async with agent.chat(stream=stream) as response:
        text = await response.text()
    assert response.status == status
    assert kind in text
    span = await agent.span()
    assert (span.status.status_code, span.attributes["error.type"]) == ("ERROR", kind)


@pytest.mark.parametrize("model", ["hosted_vllm/small", "openai/small"])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_backend_that_dies_before_it_answers_is_no_answer_of_it(
    make_agent: MakeAgent, engine: FakeEngine, model: str, stream: bool
) -> None:
    engine.faults = ["dies"]
    agent = await make_agent(model)
    async with agent.chat(stream=stream) as response:
        assert (response.status, (await response.json())["error"]["code"]) == (502, "backend_broke")
    assert (await agent.span()).attributes["error.type"] == "backend_broke"
    assert len(engine.received) == 1


async def test_a_backend_that_is_not_there_is_tried_again(make_agent: MakeAgent) -> None:
    agent = await make_agent(api_base="http://127.0.0.1:1/v1")
    async with agent.chat() as response:
        error = (await response.json())["error"]
    assert (response.status, error["code"]) == (503, "backend_unavailable")
    assert "http://127.0.0.1:1/v1" in error["message"]
    assert (await agent.span()).attributes["agentlightning.tries"] == 3


async def test_prices_are_the_librarys_where_none_are_given(make_agent: MakeAgent) -> None:
    agent = await make_agent("openai/gpt-4o-mini")
    assert await status_of(agent.chat()) == 200
    span = await agent.span()
    # https://openai.com/api/pricing: 0.15 and 0.60 US dollars for a million tokens
    assert span.attributes["gen_ai.usage.cost"] == pytest.approx((7 * 0.15 + 6 * 0.60) / 1e6)
    unknown = await make_agent("hosted_vllm/small")
    assert await status_of(unknown.chat()) == 200
    assert "gen_ai.usage.cost" not in (await unknown.span()).attributes
    given = await make_agent("openai/gpt-4o-mini", input_cost_per_token=1.0)
    assert await status_of(given.chat()) == 200
    assert (await given.span()).attributes["gen_ai.usage.cost"] == 7.0


def test_what_is_kept_in_a_cache_for_an_hour_costs_more() -> None:
    backend = LitellmBackend("anthropic/claude-sonnet-4-5", api_key="none")
    # https://www.anthropic.com/pricing: for a million tokens 3, read 0.30, written 3.75, for an hour 6 US dollars
    minutes, hour = (backend.cost(TokenCounts(1510, 0, 1000, 500, kept)) for kept in (0, 200))
    assert minutes == pytest.approx((10 * 3 + 1000 * 0.3 + 500 * 3.75) / 1e6)
    assert hour == pytest.approx((10 * 3 + 1000 * 0.3 + 300 * 3.75 + 200 * 6) / 1e6)


async def test_azures_dated_api_gets_the_deployment_the_version_and_the_key(make_agent: MakeAgent) -> None:
    asked: list[tuple[str, str | None]] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append((request.path_qs, request.headers.get("api-key")))
        said = {"index": 0, "message": {"role": "assistant", "content": "Paris."}, "finish_reason": "stop"}
        return web.json_response(
            {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [said]}
        )

    app = web.Application()
    app.router.add_post("/{rest:.*}", answer)
    async with TestServer(app) as azure:
        agent = await make_agent("azure/my-deployment", api_base=str(azure.make_url("")), api_version="2024-10-21")
        async with agent.chat() as response:
            assert (await response.json())["choices"][0]["message"]["content"] == "Paris."
    url = "/openai/deployments/my-deployment/chat/completions?api-version=2024-10-21"
    assert asked == [(url, "sk-of-the-backend")]


MESSAGES: list[dict[str, Any]] = [
    {"role": "user", "content": "Which files are there?"},
    {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "ls", "input": {"path": "."}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "README.md " * 50}]},
]
TOOLS = [{"name": "ls", "description": "Lists files.", "input_schema": {"type": "object", "properties": {}}}]
PATH = "/messages/count_tokens"


async def test_a_conversation_is_counted_with_its_tools_and_instructions(
    make_agent: MakeAgent, engine: FakeEngine
) -> None:
    agent = await make_agent()
    counts = []
    for more in ({}, {"tools": TOOLS}, {"tools": TOOLS, "system": [{"type": "text", "text": "You are terse. " * 20}]}):
        async with agent.post(PATH, messages=MESSAGES, **more) as response:
            assert response.status == 200
            counts.append((await response.json())["input_tokens"])
    assert counts == sorted(set(counts))
    assert 100 < counts[0] < 400
    assert not engine.received
    assert not await agent.proxy.store.query_spans(*agent.ids)  # type: ignore[union-attr]


@pytest.mark.parametrize("messages", [[], [{"role": "user", "content": [{"type": "unheard-of"}]}]])
async def test_what_cannot_be_counted_is_refused_in_the_apis_form(make_agent: MakeAgent, messages: Any) -> None:
    agent = await make_agent()
    async with agent.post(PATH, messages=messages) as response:
        answered = await response.json()
    assert (response.status, answered["error"]["type"]) == (400, "invalid_request_error")
