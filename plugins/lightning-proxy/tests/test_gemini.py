"""Gemini's API in front of an engine that speaks chat: its own client, and what chat cannot say."""

import base64
import json
from typing import Any

import pytest
from chat_answers import chunks, messages, whole
from hypothesis import given, strategies
from lightning_proxy.apis import GEMINI
from lightning_proxy.request import Refused
from lightning_proxy.testing import FakeEngine
from proxy_fixtures import Agent, Serve, status_of

Fields = dict[str, Any]

HI = {"role": "user", "parts": [{"text": "hi"}]}
PATH = "/models/small:generateContent"


def asked(query: str = "", action: str = "generateContent", **fields: Any) -> Fields:
    return GEMINI.read_request({"contents": [HI], **fields}, f"/models/small:{action}", query)


def chat_of(**fields: Any) -> Fields:
    return GEMINI.to_chat(asked(**fields))


# From contents to chat

CALL = {"id": "c1", "name": "add", "args": {"a": 1}}
CHAT_CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a":1}'}}
SIGNATURE = base64.b64encode("agl-hm ü".encode()).decode()
DECLARED = {"functionDeclarations": [{"name": "add", "description": "adds"}, {"name": "sub"}]}
ADD = {"type": "function", "function": {"name": "add", "description": "adds"}}
SUB = {"type": "function", "function": {"name": "sub"}}


def calling(mode: str, *allowed: str) -> Fields:
    return {"functionCallingConfig": {"mode": mode, "allowedFunctionNames": list(allowed)}}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"systemInstruction": {"parts": [{"text": "be good"}]}}, {"role": "system", "content": "be good"}),
        ({"system_instruction": {"parts": [{"text": "be good"}]}}, {"role": "system", "content": "be good"}),
        (
            {"generationConfig": {"topP": 0.5, "topK": 3, "temperature": 0}},
            {"top_p": 0.5, "top_k": 3, "temperature": 0},
        ),
        ({"generationConfig": {"maxOutputTokens": 9, "stopSequences": ["x"]}}, {"max_tokens": 9, "stop": ["x"]}),
        ({"generationConfig": {"thinkingConfig": {"thinkingBudget": 9}}}, {}),
        ({"safetySettings": [{"category": "X", "threshold": "OFF"}]}, {}),
        ({"generationConfig": {"responseMimeType": "application/json"}}, {"response_format": {"type": "json_object"}}),
        ({"tools": [DECLARED]}, {"tools": [ADD, SUB]}),
        ({"tools": [DECLARED], "toolConfig": calling("AUTO")}, {"tools": [ADD, SUB]}),
        ({"tools": [DECLARED], "toolConfig": calling("NONE")}, {"tools": [ADD, SUB], "tool_choice": "none"}),
        ({"tools": [DECLARED], "toolConfig": calling("ANY")}, {"tools": [ADD, SUB], "tool_choice": "required"}),
        (
            {"tools": [DECLARED], "toolConfig": calling("ANY", "sub")},
            {"tools": [SUB], "tool_choice": {"type": "function", "function": {"name": "sub"}}},
        ),
        ({"tools": [{"googleSearch": {}}]}, {}),
    ],
)
def test_a_request_is_the_chat_that_asks_the_same(fields: Fields, expected: Fields) -> None:
    said: list[Fields] = [{"role": "user", "content": "hi"}]
    if "role" in expected:
        said, expected = [expected, *said], {}
    assert chat_of(**fields) == {"model": "small", "messages": said, **expected}


def test_a_schema_of_gemini_is_a_json_schema() -> None:
    schema = {
        "type": "OBJECT",
        "properties": {
            "type": {"type": "STRING", "format": "enum", "enum": ["a"]},
            "many": {"type": "ARRAY", "items": {"type": "INTEGER"}, "minItems": "2", "nullable": True},
        },
        "propertyOrdering": ["type", "many"],
    }
    chat = chat_of(generationConfig={"responseMimeType": "application/json", "responseSchema": schema})
    assert chat["response_format"]["json_schema"]["schema"] == {
        "type": "object",
        "properties": {
            "type": {"type": "string", "enum": ["a"]},
            "many": {"type": ["array", "null"], "items": {"type": "integer"}, "minItems": 2},
        },
    }


def test_a_conversation_with_tools_is_the_messages_of_chat() -> None:
    chat = chat_of(
        contents=[
            {"parts": [{"text": "look"}, {"inlineData": {"mimeType": "image/png", "data": "QQ=="}}]},
            {"role": "model", "parts": [{"text": "hm ü", "thought": True}, {"text": "so"}]},
            {"role": "model", "parts": [{"functionCall": CALL, "thoughtSignature": SIGNATURE}]},
            {"role": "user", "parts": [{"functionResponse": {"name": "add", "response": {"result": "3"}}}]},
            {"role": "model", "parts": [{"text": "why", "thought": True}]},
            {"role": "model", "parts": [{"functionCall": {"name": "add"}, "thoughtSignature": "skip_validator"}]},
            {"role": "user", "parts": [{"functionResponse": {"name": "add", "response": {"a": 1}}}, {"text": "go on"}]},
        ]
    )
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,QQ=="}}
    again = {"id": "call_2", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    assert chat["messages"] == [
        {"role": "user", "content": [{"type": "text", "text": "look"}, image]},
        {"role": "assistant", "content": "so", "reasoning_content": "hm ü", "tool_calls": [CHAT_CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": "3"},
        {"role": "assistant", "content": None, "reasoning_content": "why", "tool_calls": [again]},
        {"role": "tool", "tool_call_id": "call_2", "content": '{"a":1}'},
        {"role": "user", "content": "go on"},
    ]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"cachedContent": "x"}, "cachedContent is none of the fields"),
        ({"contents": []}, "contents do not end with what the model is to answer"),
        ({"contents": [HI, {"role": "model", "parts": [{"text": "a"}]}]}, "contents do not end"),
        ({"contents": [{"parts": [{"executableCode": {}}]}]}, r"contents\[0\].parts\[0\].executableCode"),
        ({"contents": [{"parts": [{"inlineData": {"mimeType": "audio/wav", "data": ""}}]}]}, "is 'audio/wav'"),
        ({"contents": [{"parts": [{"functionResponse": {"name": "f"}}]}]}, "answers 'f', which the model did not call"),
        ({"generationConfig": {"candidateCount": 2}}, "asks for several answers"),
        ({"generationConfig": {"responseModalities": ["AUDIO"]}}, "asks for other things than text"),
        ({"generationConfig": {"responseLogprobs": True}}, "generationConfig.responseLogprobs is none of the fields"),
        ({"generationConfig": {"responseMimeType": "text/x.enum"}}, "is 'text/x.enum'"),
        ({"toolConfig": calling("SOME")}, "mode is 'SOME'; it is one of AUTO"),
        ({"action": "streamGenerateContent"}, r"add \?alt=sse"),
    ],
)
def test_what_chat_cannot_say_is_refused_by_its_name(fields: Fields, message: str) -> None:
    with pytest.raises(Refused, match=message):
        asked(**fields)


# From chat to candidates


@given(messages, strategies.integers(1, 5), strategies.booleans())
def test_an_answer_that_is_sent_back_is_the_message_that_the_engine_gave(said: Fields, size: int, thinks: bool) -> None:
    request = asked(generationConfig={"thinkingConfig": {"includeThoughts": thinks}})
    answer = GEMINI.from_chat(whole(said), request)
    stream = GEMINI.stream(request)
    events = [event for chunk in chunks(said, size) for event in stream.feed(chunk)] + stream.finish()
    streamed = [event["candidates"][0]["content"] for event in events]
    for contents in ([answer["candidates"][0]["content"]], streamed):
        parts = [part for content in contents for part in content["parts"]]
        assert parts
        assert any(part.get("thought") for part in parts) == bool(thinks and said.get("reasoning_content"))
        results = [
            {"functionResponse": {"id": part["functionCall"]["id"], "name": part["functionCall"]["name"]}}
            for part in parts
            if "functionCall" in part
        ]
        history = [HI, *contents, {"role": "user", "parts": results or [{"text": "go on"}]}]
        turn = asked(contents=history)["messages"][1]
        for call in [*turn.get("tool_calls", ()), *said.get("tool_calls", ())]:
            call["function"]["arguments"] = json.loads(call["function"]["arguments"])
        expected = {**said, "content": said["content"] or (None if said.get("tool_calls") else "")}
        assert turn == expected
        for call in said.get("tool_calls", ()):
            call["function"]["arguments"] = json.dumps(call["function"]["arguments"])
    last = events[-1]
    assert last["usageMetadata"] == answer["usageMetadata"]
    assert last["candidates"][0]["finishReason"] == answer["candidates"][0]["finishReason"] == "STOP"


# By its own client


@pytest.fixture
async def converted(serve: Serve) -> Agent:
    return await serve(params={"return_token_ids": True})


def post(agent: Agent, path: str = PATH, **fields: Any) -> Any:
    headers = {"x-goog-api-key": "none"}
    base = agent.base.removesuffix("/v1") + "/v1beta"
    return agent.http.post(f"{base}{path}", json={"contents": [HI], **fields}, headers=headers)


async def test_it_is_recorded_with_tokens_and_with_what_was_ignored(converted: Agent, engine: FakeEngine) -> None:
    safety = [{"category": "HARM_CATEGORY_HARASSMENT", "threshold": "OFF"}]
    config = {"maxOutputTokens": 9, "thinkingConfig": {"thinkingBudget": 5}}
    tools = [{"googleSearch": {}}]
    async with post(converted, safetySettings=safety, generationConfig=config, tools=tools) as response:
        answer = await response.json()
    assert answer["candidates"][0]["content"]["parts"] == [{"text": "ok"}]
    assert engine.received[0].path == "/v1/chat/completions"
    assert not {"gemini", "safety_settings", "thinking"} & engine.received[0].fields.keys()
    attributes = (await converted.span()).attributes
    assert attributes["agentlightning.has_token_ids"] is True
    assert attributes["gen_ai.provider.name"] == "gcp.gemini"
    assert attributes["gen_ai.response.id"] == answer["responseId"]
    assert attributes["gen_ai.request.max_tokens"] == 9
    assert attributes["gen_ai.request.reasoning_budget_tokens"] == 5
    assert json.loads(str(attributes["gen_ai.request.safety_settings"])) == safety
    assert attributes["agentlightning.dropped_tools"] == ["googleSearch"]


async def test_any_backend_answers_it_by_chat(agent: Agent, engine: FakeEngine) -> None:
    assert await status_of(post(agent)) == 200
    assert engine.received[0].path == "/v1/chat/completions"


async def test_tokens_are_not_counted_and_models_are_listed(converted: Agent) -> None:
    async with post(converted, "/models/small:countTokens") as response:
        assert (response.status, (await response.json())["error"]["status"]) == (404, "NOT_FOUND")
    base = converted.base.removesuffix("/v1") + "/v1beta"
    async with converted.http.get(f"{base}/models") as response:
        assert [each["name"] for each in (await response.json())["models"]] == ["models/small"]


async def test_errors_are_those_of_its_client(converted: Agent, engine: FakeEngine) -> None:
    genai = pytest.importorskip("google.genai")
    errors = pytest.importorskip("google.genai.errors")
    with_version = genai.types.HttpOptions(base_url=converted.base)  # `/v1` may stay
    async with genai.Client(api_key="none", http_options=with_version).aio as client:
        assert (await client.models.generate_content(model="small", contents="hi")).text == "ok"
        config = {"candidate_count": 2}
        with pytest.raises(errors.ClientError, match=r"400 INVALID_ARGUMENT.*asks for several answers"):
            await client.models.generate_content(model="small", contents="hi", config=config)
        engine.faults = [400]
        with pytest.raises(errors.ClientError, match="400 INVALID_ARGUMENT"):
            await client.models.generate_content(model="small", contents="hi")
        engine.faults = ["dies_mid_stream"]
        with pytest.raises(errors.ServerError, match="backend_broke"):
            async for _ in await client.models.generate_content_stream(model="small", contents="hi"):
                pass


async def test_tools_of_functions_are_called_by_its_client(converted: Agent, engine: FakeEngine) -> None:
    genai = pytest.importorskip("google.genai")
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": 2}'}}
    engine.replies = [{"content": None, "reasoning_content": "hm", "tool_calls": [call]}, "3"]

    def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    options = genai.types.HttpOptions(base_url=converted.base.removesuffix("/v1"))
    async with genai.Client(api_key="none", http_options=options).aio as client:
        chat = client.chats.create(model="small", config={"tools": [add]})
        assert (await chat.send_message("1 + 2?")).text == "3"
    _, turn, result = engine.received[1].fields["messages"]
    assert turn["reasoning_content"] == "hm"
    assert (turn["tool_calls"][0]["id"], result["tool_call_id"], result["role"]) == ("c1", "c1", "tool")
