"""Messages to chat and back: nothing is lost, and what chat cannot say is refused by its name."""

import dataclasses
import json
from typing import Any

import pytest
from chat_answers import chunks, message, messages, texts, whole
from hypothesis import given, strategies
from lightning_proxy.apis import CONVERTIBLE, DIALECTS, Assembler
from lightning_proxy.request import Refused
from lightning_proxy.sse import ServerEvent

MESSAGES = CONVERTIBLE["/messages"]
HI = [{"role": "user", "content": "hi"}]
CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}


def asked(**fields: Any) -> dict[str, Any]:
    return MESSAGES.to_chat({"model": "small", "max_tokens": 9, "messages": HI, **fields})


def refusal(**fields: Any) -> str:
    with pytest.raises(Refused) as caught:
        asked(**fields)
    assert caught.value.status == 400
    return caught.value.message


def essence(said: dict[str, Any]) -> dict[str, Any]:
    """A message of the model with its arguments read: their JSON may be written anew."""
    read = [
        {**call, "function": {**call["function"], "arguments": json.loads(call["function"]["arguments"])}}
        for call in said.get("tool_calls", ())
    ]
    return {**said, "tool_calls": read}


@given(messages)
def test_an_answer_comes_back_as_the_message_that_the_engine_gave(said: dict[str, Any]) -> None:
    answer = MESSAGES.from_chat(whole(said), {"model": "small"})
    turn = {"role": "assistant", "content": answer["content"]}
    chat = asked(messages=[*HI, turn, *HI])
    assert essence(chat["messages"][1]) == essence(said)
    assert chat["messages"][::2] == HI * 2


@given(messages, strategies.integers(1, 9))
def test_a_stream_says_what_the_answer_in_one_piece_does(said: dict[str, Any], size: int) -> None:
    conversion, assembler = MESSAGES.stream({"model": "small"}), Assembler(MESSAGES)
    events = [event for chunk in chunks(said, size) for event in conversion.feed(chunk)] + conversion.finish()
    for event in events:
        assembler.feed(ServerEvent(b"", "", b""), json.loads(json.dumps(event)))
    answer = MESSAGES.from_chat(whole(said), {"model": "small"})
    assert assembler.answer() == dataclasses.replace(MESSAGES.read(answer), id=assembler.id)
    assert events[0]["type"] == "message_start"
    assert [event["type"] for event in events[-2:]] == ["message_delta", "message_stop"]
    for kind in ("content_block_start", "content_block_stop"):
        assert [each["index"] for each in events if each["type"] == kind] == list(range(len(answer["content"])))


@pytest.mark.parametrize(
    ("source", "url"),
    [
        ({"type": "base64", "media_type": "image/png", "data": "AAAA"}, "data:image/png;base64,AAAA"),
        ({"type": "url", "url": "https://example.org/a.png"}, "https://example.org/a.png"),
    ],
)
def test_texts_images_and_system_prompts_are_chats_own(source: dict[str, str], url: str) -> None:
    text = {"type": "text", "text": "look"}
    said = [
        {"role": "user", "content": [text]},
        {"role": "user", "content": [text, {"type": "image", "source": source}]},
    ]
    assert asked(system=[text, text], messages=said)["messages"] == [
        {"role": "system", "content": [text, text]},
        {"role": "user", "content": "look"},
        {"role": "user", "content": [text, {"type": "image_url", "image_url": {"url": url}}]},
    ]


@given(strategies.lists(strategies.tuples(texts, strategies.booleans()), min_size=1, max_size=3), texts)
def test_results_of_tools_are_messages_in_their_order(results: list[tuple[str, bool]], after: str) -> None:
    said = [
        {"type": "tool_result", "tool_use_id": f"c{place}", "content": text, "is_error": failed}
        for place, (text, failed) in enumerate(results)
    ]
    *tools, last = asked(messages=[{"role": "user", "content": [*said, {"type": "text", "text": after}]}])["messages"]
    assert last == {"role": "user", "content": after}
    assert [(each["content"], each.get("is_error", False)) for each in tools] == results
    assert [each["tool_call_id"] for each in tools] == [each["tool_use_id"] for each in said]
    assert {each["role"] for each in tools} == {"tool"}


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ({"type": "auto"}, {"tool_choice": "auto"}),
        ({"type": "any"}, {"tool_choice": "required"}),
        ({"type": "none"}, {"tool_choice": "none"}),
        ({"type": "tool", "name": "add"}, {"tool_choice": {"type": "function", "function": {"name": "add"}}}),
        ({"type": "auto", "disable_parallel_tool_use": True}, {"tool_choice": "auto", "parallel_tool_calls": False}),
    ],
)
def test_the_choice_of_a_tool_is_chats(choice: dict[str, Any], expected: dict[str, Any]) -> None:
    chat = asked(tool_choice=choice)
    assert {name: chat[name] for name in expected} == expected


def test_what_claude_code_sends_always_changes_nothing() -> None:
    plain = asked()
    keeps = {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}
    assert plain == asked(
        thinking={"type": "adaptive"},
        output_config={"effort": "high"},
        context_management=keeps,
        metadata={"user_id": "u"},
    )
    assert plain == {"model": "small", "max_tokens": 9, "messages": HI}


def test_parameters_have_chats_names() -> None:
    same = {"temperature": 0.5, "top_p": 0.9, "top_k": 3, "stream": True}
    chat = asked(stop_sequences=["x"], output_config={"effort": "low"}, **same)
    assert chat == {**asked(), **same, "stop": ["x"], "reasoning_effort": "low"}


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0].type is 'bash_20250124'"),
        ({"tools": [{"name": "a", "input_schema": {}, "defer_loading": True}]}, "tools[0].defer_loading"),
        ({"mcp_servers": [{}]}, "mcp_servers"),
        ({"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}, "context_management.edits[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "document"}]}]}, "messages[0].content[0].type"),
        ({"messages": [*HI, {"role": "assistant", "content": "so"}]}, "messages[1] is the beginning of an answer"),
        (
            {"messages": [*HI, {"role": "assistant", "content": [{"type": "redacted_thinking", "data": "x"}]}, *HI]},
            "messages[1].content[0].type is 'redacted_thinking'",
        ),
        ({"system": [{"type": "image"}]}, "system[0].type"),
        ({"output_config": {"task_budget": 1}}, "output_config.task_budget"),
        ({"tool_choice": {"type": "other"}}, "tool_choice.type is 'other'"),
        ({"messages": "hi"}, "messages is 'hi'"),
        ({"messages": []}, "messages is empty"),
        ({"tool_choice": "auto"}, "tool_choice is 'auto'; it is an object"),
        ({"output_config": {"format": "json"}}, "output_config.format is 'json'; it is an object"),
        ({"messages": [{"role": "tool", "content": "hi"}]}, "messages[0].role is 'tool'"),
    ],
)
def test_what_chat_cannot_say_is_refused_by_its_name(fields: dict[str, Any], names: str) -> None:
    assert names in refusal(**fields)


@pytest.mark.parametrize(
    ("said", "reason", "stop", "expected"),
    [
        (message("a", "", []), "stop", None, ("end_turn", None)),
        (message("a", "", []), "stop", "x", ("stop_sequence", "x")),
        (message("a", "", []), "length", None, ("max_tokens", None)),
        (message("a", "", []), "content_filter", None, ("refusal", None)),
        (message("", "", [CALL]), "tool_calls", None, ("tool_use", None)),
        (message("", "", [CALL]), "stop", None, ("tool_use", None)),
    ],
)
def test_an_answer_ends_for_its_reason(said: Any, reason: str, stop: str | None, expected: tuple[str, Any]) -> None:
    chat = whole(said, reason)
    chat["choices"][0]["stop_reason"] = stop
    answer = MESSAGES.from_chat(chat, {"stop_sequences": ["x"]})
    assert (answer["stop_reason"], answer["stop_sequence"]) == expected


@pytest.mark.parametrize("arguments", ["{", "[1]", "1", '{"a": 1e999}', '{"a": NaN}', "run it"])
@pytest.mark.parametrize("reason", ["tool_calls", "length"])
def test_a_call_that_the_model_wrote_badly_is_its_answer(arguments: str, reason: str) -> None:
    said = message("", "", [{**CALL, "function": {"name": "add", "arguments": arguments}}])
    answer = MESSAGES.from_chat(whole(said, reason), {})
    assert answer["content"][0]["input"] == {"INVALID_JSON": arguments}
    turn = {"role": "assistant", "content": answer["content"]}
    assert asked(messages=[*HI, turn, *HI])["messages"][1]["tool_calls"] == said["tool_calls"]

    conversion = MESSAGES.stream({"model": "small"})
    events = [event for chunk in chunks(said, 3, reason) for event in conversion.feed(chunk)] + conversion.finish()
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    assert "".join(delta["partial_json"] for delta in deltas) == arguments
    assert events[-2]["delta"]["stop_reason"] == answer["stop_reason"]


@pytest.mark.parametrize("written", ["[]", "0", "[1]"])
def test_arguments_that_clients_read_of_a_stream_go_back_as_they_were(written: str) -> None:
    called = {"type": "tool_use", "id": "c1", "name": "add", "input": json.loads(written)}
    chat = asked(messages=[*HI, {"role": "assistant", "content": [called]}, *HI])
    assert chat["messages"][1]["tool_calls"][0]["function"]["arguments"] == written


def delta(**fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": fields}]}


def calling(index: int, arguments: str, **more: Any) -> dict[str, Any]:
    return delta(
        tool_calls=[{"index": index, "function": {"arguments": arguments, **more.pop("function", {})}, **more}]
    )


def test_parallel_calls_of_one_index_are_told_apart_in_the_answer_and_in_its_record() -> None:
    given_chunks = [calling(0, '{"a": 1}', id=f"c{n}", type="function", function={"name": "add"}) for n in (1, 2)]
    conversion, assembler = MESSAGES.stream({}), Assembler(DIALECTS["/chat/completions"])
    for chunk in given_chunks:
        assembler.feed(ServerEvent(b"", "", b""), chunk)
    events = [event for chunk in given_chunks for event in conversion.feed(chunk)]
    begun = [event["content_block"]["id"] for event in events if event["type"] == "content_block_start"]
    assert begun == [call["id"] for call in assembler.answer().choices[0].tool_calls] == ["c1", "c2"]


def test_arguments_that_are_an_object_are_those_of_the_call() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
    conversion = MESSAGES.stream({})
    conversion.take(whole({"role": "assistant", "content": None, "tool_calls": [call]}))
    assert conversion.answer()["content"][0]["input"] == {"a": 1}


@pytest.mark.parametrize("amid", [{"content": "\n"}, {"reasoning_content": "hm"}])
def test_what_comes_amid_a_call_comes_after_it(amid: dict[str, str]) -> None:
    first = calling(0, '{"a"', id="c1", function={"name": "add"})
    second = calling(1, "{}", id="c2", function={"name": "sub"})
    end = {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}
    conversion = MESSAGES.stream({})
    given_chunks = [first, delta(**amid), calling(0, ": 1}"), delta(**amid), second, delta(content="end"), end]
    events = [event for chunk in given_chunks for event in conversion.feed(chunk)] + conversion.finish()
    begun = [event["content_block"] for event in events if event["type"] == "content_block_start"]
    kind = "text" if "content" in amid else "thinking"
    assert [block["type"] for block in begun] == ["tool_use", kind, "tool_use", "text"]
    assert [block.get("id") for block in begun] == ["c1", None, "c2", None]
    pieces: dict[int, str] = {}
    ended: list[int] = []
    for event in events:
        if event["type"] == "content_block_delta":
            assert event["index"] == len(ended)
            text = next((value for name, value in event["delta"].items() if name not in ("type", "signature")), "")
            pieces[event["index"]] = pieces.get(event["index"], "") + text
        elif event["type"] == "content_block_stop":
            ended.append(event["index"])
    assert ended == [0, 1, 2, 3]
    assert list(pieces.values()) == ['{"a": 1}', "".join(amid.values()) * 2, "{}", "end"]


def test_calls_with_the_same_index_are_told_apart_by_their_ids() -> None:
    calls = [{**CALL, "index": 0, "id": f"c{place}"} for place in range(2)]
    answer = MESSAGES.from_chat(whole(message("", "", calls)), {})
    assert [(block["type"], block["input"]) for block in answer["content"]] == [("tool_use", {"a": 1})] * 2


def test_an_answer_in_parts_is_their_text() -> None:
    said: dict[str, Any] = {"role": "assistant", "content": [{"type": "text", "text": each} for each in "ab"]}
    assert MESSAGES.from_chat(whole(said), {})["content"] == [{"type": "text", "text": "ab"}]
    said["content"].append({"type": "audio"})
    with pytest.raises(Refused, match="answered with a part of the type 'audio'"):
        MESSAGES.from_chat(whole(said), {})


def test_usage_counts_cached_tokens_apart() -> None:
    usage = MESSAGES.from_chat(whole(message("a", "", [])), {})["usage"]
    assert (usage["input_tokens"], usage["cache_read_input_tokens"], usage["output_tokens"]) == (5, 2, 3)
