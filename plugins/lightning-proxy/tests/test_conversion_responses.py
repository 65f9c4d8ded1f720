"""Responses to chat and back: nothing is lost, and what chat cannot say is refused by its name."""

from typing import Any

import pytest
from chat_answers import chunks, message, messages, whole
from hypothesis import given, strategies
from lightning_proxy.apis import CONVERTIBLE
from lightning_proxy.request import Refused
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

RESPONSES = CONVERTIBLE["/responses"]
EVENTS: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
HI = {"role": "user", "content": "hi"}
CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
TOOL = {"type": "function", "name": "add"}
KEPT = {"include": ["reasoning.encrypted_content"]}


def asked(**fields: Any) -> dict[str, Any]:
    return RESPONSES.to_chat({"model": "small", "input": "hi", **fields})


def streamed(said: dict[str, Any], size: int, reason: str | None = None, **request: Any) -> list[dict[str, Any]]:
    conversion = RESPONSES.stream({"model": "small", **request})
    events = [event for chunk in chunks(said, size, reason) for event in conversion.feed(chunk)]
    return events + conversion.finish()


def without_ids(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: without_ids(each) for name, each in value.items() if name not in ("id", "created_at")}
    return [without_ids(each) for each in value] if isinstance(value, list) else value


@given(messages)
def test_an_answer_comes_back_as_the_message_that_the_engine_gave(said: dict[str, Any]) -> None:
    answer = RESPONSES.from_chat(whole(said), {"model": "small"})
    Response.model_validate(answer, strict=False)
    chat = asked(input=[HI, *answer["output"], HI])
    (turn,) = chat["messages"][1:-1]
    assert {**turn, "content": turn["content"] or ""} == {**said, "content": said["content"] or ""}


@given(messages)
def test_a_client_that_keeps_no_reasoning_sends_it_back_encrypted(said: dict[str, Any]) -> None:
    answer = RESPONSES.from_chat(whole(said), {"model": "small", **KEPT})
    items = [{name: value for name, value in item.items() if name != "id"} for item in answer["output"]]
    items = [{**item, "content": None} if item["type"] == "reasoning" else item for item in items]
    (turn,) = asked(input=[HI, *items, HI])["messages"][1:-1]
    assert turn.get("reasoning_content") == said.get("reasoning_content")


@given(messages, strategies.integers(1, 9))
def test_a_stream_says_what_the_answer_in_one_piece_does(said: dict[str, Any], size: int) -> None:
    events = streamed(said, size)
    for event in events:
        EVENTS.validate_python(event)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    last = events[-1]
    assert last["type"] == "response.completed"
    assert without_ids(last["response"]) == without_ids(RESPONSES.from_chat(whole(said), {"model": "small"}))
    items = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert items == last["response"]["output"]
    for item in items:
        pieces = [event["delta"] for event in events if event.get("item_id") == item["id"] and "delta" in event]
        whole_text = item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"]
        assert "".join(pieces) == whole_text


IMAGE = "data:image/png;base64,AAAA"


@pytest.mark.parametrize("role", ["user", "system", "developer"])
@pytest.mark.parametrize(("detail", "more"), [("auto", {}), ("low", {"detail": "low"})])
def test_texts_and_images_are_chats_own(role: str, detail: str, more: dict[str, str]) -> None:
    text = {"type": "input_text", "text": "look"}
    image = {"type": "input_image", "image_url": IMAGE, "detail": detail}
    said = [{"role": role, "content": [text]}, {"type": "message", "role": role, "content": [text, image]}]
    in_chat = "user" if role == "user" else "system"
    both = [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": IMAGE, **more}}]
    assert asked(instructions="be good", input=said)["messages"] == [
        {"role": "system", "content": "be good"},
        {"role": in_chat, "content": "look"},
        {"role": in_chat, "content": both},
    ]


def test_functions_of_a_namespace_have_names_of_their_own_in_chat() -> None:
    parameters = {"type": "object", "properties": {}}
    groups = [
        {
            "type": "namespace",
            "name": name,
            "description": "of files",
            "tools": [
                {"type": "function", "name": "open", "description": "opens", "parameters": parameters},
                {"type": "function", "name": "close", "parameters": parameters},
            ],
        }
        for name in ("one", "two")
    ]
    tools = [{"type": "function", "name": "open"}, *groups]
    chat = asked(tools=tools, tool_choice={"type": "function", "name": "close", "namespace": "two"})
    functions = [tool["function"] for tool in chat["tools"]]
    names = ["open", "one__open", "one__close", "two__open", "two__close"]
    assert [function["name"] for function in functions] == names
    assert functions[1] == {"name": "one__open", "description": "one: of files\n\nopens", "parameters": parameters}
    assert functions[2] == {"name": "one__close", "parameters": parameters}
    assert chat["tool_choice"]["function"]["name"] == "two__close"

    calls = [
        {"id": f"c{place}", "type": "function", "function": {"name": name, "arguments": "{}"}}
        for place, name in enumerate([*names, "one__read"])
    ]
    answer = RESPONSES.from_chat(whole(message("", "", calls)), {"model": "small", "tools": tools})
    Response.model_validate(answer, strict=False)
    found = [(item.get("namespace"), item["name"]) for item in answer["output"]]
    assert found == [
        (None, "open"),
        ("one", "open"),
        ("one", "close"),
        ("two", "open"),
        ("two", "close"),
        (None, "one__read"),
    ]
    assert asked(input=[HI, *answer["output"]])["messages"][1]["tool_calls"] == calls

    events = streamed(message("", "", calls), 2, tools=tools)
    assert without_ids(events[-1]["response"]["output"]) == without_ids(answer["output"])
    done = [event["name"] for event in events if event["type"] == "response.function_call_arguments.done"]
    assert done == [item["name"] for item in answer["output"]]


def test_turns_of_the_model_are_told_apart() -> None:
    first = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "one"}]}
    call = {"type": "function_call", "call_id": "c1", "name": "add", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "2"}]}
    chat = asked(input=[HI, first, call, result, first, {**first, "content": "two"}])
    assert [each["role"] for each in chat["messages"]] == ["user", "assistant", "tool", "assistant", "assistant"]
    assert chat["messages"][1]["tool_calls"][0]["id"] == "c1"
    assert [each["content"] for each in chat["messages"]] == ["hi", "one", "2", "one", "two"]


@pytest.mark.parametrize("has_ids", [True, False])
@pytest.mark.parametrize("kinds", ["ARA", "CRC", "RARA", "ACA", "CAC"])
def test_the_items_of_one_answer_are_one_message(kinds: str, has_ids: bool) -> None:
    deltas = {
        "A": {"content": "a"},
        "R": {"reasoning_content": "r"},
        "C": {"tool_calls": [{**CALL, "function": {"name": "add", "arguments": "{}"}}]},
    }
    conversion = RESPONSES.stream({"model": "small"})
    for place, kind in enumerate(kinds):
        delta = deltas[kind]
        if kind == "C":
            delta = {"tool_calls": [{**delta["tool_calls"][0], "index": place, "id": f"c{place}"}]}
        conversion.feed({"choices": [{"index": 0, "delta": delta}]})
    conversion.feed({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    items = conversion.finish()[-1]["response"]["output"]
    assert len(items) == len(kinds)
    if not has_ids:
        items = [{name: value for name, value in item.items() if name != "id"} for item in items]
    _, answer, user = asked(input=[HI, *items, HI])["messages"]
    assert user == HI
    assert (answer["content"] or "").count("a") == kinds.count("A")
    assert answer.get("reasoning_content", "").count("r") == kinds.count("R")
    assert len(answer.get("tool_calls", ())) == kinds.count("C")


@given(messages, messages)
def test_the_items_of_two_answers_are_two_messages(one: dict[str, Any], two: dict[str, Any]) -> None:
    outputs = [RESPONSES.from_chat(whole(said), {"model": "small"})["output"] for said in (one, two)]
    turns = asked(input=[HI, *outputs[0], *outputs[1], HI])["messages"][1:-1]
    assert turns == [asked(input=[HI, *output, HI])["messages"][1] for output in outputs]


def test_what_clients_always_send_changes_nothing() -> None:
    assert asked() == asked(
        store=False,
        include=["reasoning.encrypted_content"],
        reasoning={"summary": "auto"},
        prompt_cache_key="k",
        client_metadata={"a": "b"},
        text={"format": {"type": "text"}, "verbosity": "medium"},
        truncation="disabled",
        parallel_tool_calls=True,
    )


def test_parameters_have_chats_names() -> None:
    chat = asked(
        max_output_tokens=9,
        temperature=0.5,
        reasoning={"effort": "low"},
        tools=[{"type": "function", "name": "add"}],
        tool_choice={"type": "function", "name": "add"},
        parallel_tool_calls=False,
        text={"format": {"type": "json_schema", "name": "n", "schema": {}, "strict": True}, "verbosity": "low"},
    )
    assert chat == {
        **asked(),
        "max_tokens": 9,
        "temperature": 0.5,
        "reasoning_effort": "low",
        "tools": [{"type": "function", "function": {"name": "add"}}],
        "tool_choice": {"type": "function", "function": {"name": "add"}},
        "parallel_tool_calls": False,
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {}, "strict": True}},
        "verbosity": "low",
    }


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({"tools": [{"type": "computer"}]}, "tools[0].type is 'computer', not 'function'"),
        (
            {"tools": [{"type": "namespace", "name": "n", "tools": [{"type": "custom", "name": "x"}]}]},
            "tools[0].tools[0].type is 'custom', not 'function'",
        ),
        (
            {"tools": [TOOL | {"name": "a__b"}, {"type": "namespace", "name": "a", "tools": [TOOL | {"name": "b"}]}]},
            "tools has two functions that chat would call 'a__b'",
        ),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0] names an item that is not stored here"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "x"}]}]},
            "input[0].content[0].type",
        ),
        ({"input": [{"type": "reasoning", "encrypted_content": "gAAA"}]}, "input[0].encrypted_content"),
        ({"input": [{"type": "function_call", "call_id": "c", "name": "n"}]}, "input[0].arguments is None"),
        ({"prompt": {"id": "x"}}, "prompt is none of the fields"),
        ({"truncation": "auto"}, "truncation is 'auto'"),
        ({"include": ["message.output_text.logprobs"]}, "include asks for log-probabilities"),
        ({"text": {"format": {"type": "grammar"}}}, "text.format.type is 'grammar'"),
        ({"text": {"format": "json"}}, "text.format is 'json'; it is an object"),
        ({"include": 3}, "include is 3"),
        ({"input": None}, "input is empty"),
        ({"tool_choice": {"type": "mcp"}}, "tool_choice.type is 'mcp'"),
        ({"input": [{"role": "other", "content": "x"}]}, "input[0].role is 'other'"),
    ],
)
def test_what_chat_cannot_say_is_refused_by_its_name(fields: dict[str, Any], names: str) -> None:
    with pytest.raises(Refused) as caught:
        asked(**fields)
    assert caught.value.status == 400
    assert names in caught.value.message


@pytest.mark.parametrize(
    ("reason", "status", "why"),
    [
        ("stop", "completed", None),
        ("length", "incomplete", "max_output_tokens"),
        ("content_filter", "incomplete", "content_filter"),
    ],
)
def test_a_response_ends_for_its_reason(reason: str, status: str, why: str | None) -> None:
    event = streamed(message("a", "", [CALL]), 2, reason)[-1]
    assert event["type"] == f"response.{status}"
    assert event["response"]["status"] == status
    assert (event["response"]["incomplete_details"] or {}).get("reason") == why
