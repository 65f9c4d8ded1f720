"""Anthropic's messages in front of an engine that speaks chat: their own client, and the rows that chat leaves."""

from typing import Any

import pytest
from lightning_proxy.apis import CONVERTIBLE
from lightning_proxy.testing import FakeEngine
from proxy_fixtures import Agent, Serve, answering, status_of

anthropic = pytest.importorskip("anthropic")

both_ways = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


async def ask(agent: Agent, stream: bool, **fields: Any) -> Any:
    """Make a call by Anthropic's client, for one attempt."""
    asked = {"model": "small", "max_tokens": 50, **fields}
    base = agent.base.removesuffix("/v1")
    async with anthropic.AsyncAnthropic(base_url=base, api_key="none", max_retries=0) as client:
        if not stream:
            return await client.messages.create(**asked)
        async with client.messages.stream(**asked) as streamed:
            return await streamed.get_final_message()


@pytest.fixture
async def converted(serve: Serve) -> Agent:
    return await serve(params={"return_token_ids": True})


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


@both_ways
async def test_a_call_is_recorded_by_the_id_that_its_client_sees(converted: Agent, stream: bool) -> None:
    # What instruments the client records this id, too: so the call counts once.
    message = await ask(converted, stream, **asks())
    assert (await converted.span()).attributes["gen_ai.response.id"] == message.id


@both_ways
async def test_a_field_that_chat_does_not_have_is_refused_before_the_engine_is_asked(
    converted: Agent, engine: FakeEngine, stream: bool
) -> None:
    tool = {"type": "bash_20250124", "name": "bash"}
    async with converted.post("/messages", **asks(stream=stream, tools=[tool])) as response:
        assert response.status == 400
        error = await response.json()
    assert error["type"] == "error"
    assert error["error"]["type"] == "invalid_request_error"
    assert "tools[0].type is 'bash_20250124'" in error["error"]["message"]
    assert not engine.received
    assert (await converted.span()).attributes["error.type"] == "not_convertible"


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (
            "This model's maximum context length is 1024 tokens. However, your request has 1400 input tokens. Please "
            "reduce the length of the input messages.",
            "prompt is too long: 1400 tokens > 1024 maximum",
        ),
        (
            "This model's maximum context length is 1024 tokens. However, you requested 1060 tokens (1000 in the "
            "messages, 60 in the completion). Please reduce the length of the messages or completion.",
            "input length and `max_tokens` exceed context limit: 1000 + 60 > 1024, decrease one of them and try again",
        ),
    ],
)
async def test_a_conversation_that_is_too_long_is_refused_in_the_words_that_its_client_knows(
    converted: Agent, engine: FakeEngine, said: str, expected: str
) -> None:
    answering(engine, {"error": {"message": said, "type": "BadRequestError", "code": 400}}, status=400)
    async with converted.post("/messages", **asks(max_tokens=60)) as response:
        assert response.status == 400
        error = await response.json()
    assert error["error"] == {"type": "invalid_request_error", "message": f"{expected} (context_length_exceeded)"}


async def test_a_tool_that_the_provider_runs_is_left_out_and_recorded(
    converted: Agent, engine: FakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    search = {"type": "web_search_20250305", "name": "web_search"}
    own = {"name": "look", "input_schema": {"type": "object"}}
    for tools in ([search], [search, own]):
        assert await status_of(converted.post("/messages", **asks(tools=tools, tool_choice={"type": "auto"}))) == 200
    assert [bool(received.fields.get("tools")) for received in engine.received] == [False, True]
    assert "tool_choice" not in engine.received[0].fields
    for span in await converted.spans():
        assert span.attributes["agentlightning.dropped_tools"] == ["web_search_20250305"]
    assert caplog.text.count("lightning.tool_dropped type=web_search_20250305 model=small") == 1


async def test_a_field_that_newer_clients_send_is_left_out_and_recorded(
    converted: Agent, engine: FakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        assert await status_of(converted.post("/messages", **asks(brand_new={"on": True}))) == 200
    assert all("brand_new" not in received.fields for received in engine.received)
    for span in await converted.spans():
        assert span.attributes["agentlightning.ignored_parameters"] == ["brand_new"]
    assert caplog.text.count("lightning.parameter_ignored name=brand_new model=small") == 1
    async with converted.post("/messages", **asks(mcp_servers=[{"type": "url", "url": "http://x", "name": "x"}])) as no:
        assert no.status == 400
        assert "mcp_servers" in (await no.json())["error"]["message"]


def test_an_agent_that_waits_for_a_text_is_told_that_the_answer_goes_on() -> None:
    stream = CONVERTIBLE["/messages"].stream({"model": "small"})
    chunks = [
        {"delta": {"role": "assistant", "content": ""}},
        {"delta": {}},
        {"delta": {"content": "hi"}},
        {"delta": {}},
    ]
    events = [stream.feed({"choices": [{"index": 0, "finish_reason": None, **each}]}) for each in chunks]
    begun = ["content_block_start", "content_block_delta"]
    assert [[event["type"] for event in each] for each in events] == [["message_start"], ["ping"], begun, ["ping"]]
    assert not stream.feed({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    assert not stream.feed({"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 1}})


async def test_a_stream_that_breaks_off_ends_with_the_error_of_messages(converted: Agent, engine: FakeEngine) -> None:
    engine.faults = ["dies_mid_stream"]
    with pytest.raises(anthropic.APIStatusError, match="backend_broke"):
        await ask(converted, True, **asks())
    assert (await converted.span()).attributes["error.type"] == "backend_broke"


async def test_the_first_call_without_the_wanted_tokens_is_told_of(
    converted: Agent, engine: FakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    engine.gives_tokens = False
    for path in ("/messages", "/chat/completions"):
        assert await status_of(converted.post(path, **asks())) == 200
    told = [record for record in caplog.records if "lightning.call_without_tokens" in record.getMessage()]
    assert len(told) == 1
    assert "leaves no training row" in told[0].getMessage()
    assert [span.attributes["agentlightning.has_token_ids"] for span in await converted.spans()] == [False, False]


@pytest.mark.parametrize("path", ["/messages", "/responses"])
async def test_an_endpoint_that_speaks_chat_alone_is_asked_for_that(
    serve: Serve, engine: FakeEngine, path: str
) -> None:
    agent = await serve(params={"chat_only": True, "return_token_ids": False})
    asked = asks() if path == "/messages" else {"input": "hi"}
    assert await status_of(agent.post(path, **asked)) == 200
    assert engine.received[0].path == "/v1/chat/completions"
    assert "return_token_ids" not in engine.received[0].fields
