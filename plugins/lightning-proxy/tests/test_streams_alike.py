"""A streamed answer leaves the record that the same answer leaves in one piece, whatever API it came by."""

import json
from collections.abc import Iterator
from typing import Any

from chat_answers import chunks, messages, whole
from hypothesis import given, strategies as st
from lightning_proxy.answer import Answer, output_messages
from lightning_proxy.apis import DIALECTS, Assembler
from lightning_proxy.sse import ServerEvent

Fields = dict[str, Any]

TEXTS = st.text('aé\n☃😀"\\', max_size=8)
OBJECTS = st.dictionaries(st.sampled_from(["a", "b"]), st.one_of(st.integers(0, 9), TEXTS), max_size=2)
COUNTS = st.integers(0, 9)


def has(**fields: Any) -> st.SearchStrategy[Fields]:
    """Make objects of these fields, each a value or a strategy for one."""
    is_made = st.SearchStrategy
    return st.fixed_dictionaries({name: x if isinstance(x, is_made) else st.just(x) for name, x in fields.items()})


def assembled(path: str, events: Iterator[Fields]) -> Answer:
    assembler = Assembler(DIALECTS[path])
    for fields in events:
        # As a stream brings them: no two events share an object.
        assembler.feed(ServerEvent(b"", "", b""), json.loads(json.dumps(fields)))
    return assembler.answer()


def assert_alike(path: str, whole: Fields, events: Iterator[Fields]) -> None:
    streamed, read = assembled(path, events), DIALECTS[path].read(whole)
    assert output_messages(streamed) == output_messages(read)
    assert streamed == read


def halves(text: str) -> list[str]:
    middle = len(text) // 2
    return [piece for piece in (text[:middle], text[middle:]) if piece]


# Anthropic's messages

BLOCKS = st.lists(
    has(type="text", text=TEXTS)
    | has(type="thinking", thinking=TEXTS, signature=TEXTS)
    | has(type="redacted_thinking", data=TEXTS)
    | has(type="tool_use", id="t1", name="add", input=OBJECTS)
    | has(type="server_tool_use", id="s1", name="web_search", input=OBJECTS)
    | has(type="web_search_tool_result", tool_use_id="s1", content=[{"url": "x"}]),
    max_size=4,
)
CACHE = has(
    cache_read_input_tokens=COUNTS,
    cache_creation_input_tokens=COUNTS,
    cache_creation=has(ephemeral_1h_input_tokens=COUNTS),
)


def anthropic_events(whole: Fields) -> Iterator[Fields]:
    usage = whole["usage"]
    yield {"type": "message_start", "message": {**whole, "content": [], "usage": {**usage, "output_tokens": 1}}}
    for index, block in enumerate(whole["content"]):
        pieces: list[Fields] = []
        if block["type"] == "text":
            begun = {**block, "text": ""}
            pieces = [{"type": "text_delta", "text": piece} for piece in halves(block["text"])]
        elif block["type"] == "thinking":
            begun = {**block, "thinking": "", "signature": ""}
            pieces = [{"type": "thinking_delta", "thinking": piece} for piece in halves(block["thinking"])]
            pieces.append({"type": "signature_delta", "signature": block["signature"]})
        elif "input" in block:
            begun = {**block, "input": {}}
            pieces = [{"type": "input_json_delta", "partial_json": x} for x in halves(json.dumps(block["input"]))]
        else:
            begun = block
        yield {"type": "content_block_start", "index": index, "content_block": begun}
        yield {"type": "ping"}
        for delta in pieces:
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    ending = {"stop_reason": whole["stop_reason"]}
    yield {"type": "message_delta", "delta": ending, "usage": {"output_tokens": usage["output_tokens"]}}
    yield {"type": "message_stop"}


@given(BLOCKS, CACHE)
def test_messages(blocks: list[Fields], cache: Fields) -> None:
    usage = {"input_tokens": 3, "output_tokens": 5, **cache}
    whole = {"id": "m", "model": "claude", "content": blocks, "stop_reason": "end_turn", "usage": usage}
    assert_alike("/messages", whole, anthropic_events(whole))


# OpenAI's responses

ITEMS = st.lists(
    has(
        type="message",
        role="assistant",
        content=st.lists(
            has(type="output_text", text=TEXTS) | has(type="refusal", refusal=TEXTS), min_size=1, max_size=2
        ),
    )
    | has(
        type="reasoning",
        id="rs_1",
        summary=st.lists(has(type="summary_text", text=TEXTS), max_size=2),
        content=st.lists(has(type="reasoning_text", text=TEXTS), max_size=2),
        encrypted_content=TEXTS,
    )
    | has(type="function_call", call_id="c1", name="add", arguments=OBJECTS.map(json.dumps))
    | has(type="custom_tool_call", call_id="c2", name="sh", input=TEXTS)
    | has(type="web_search_call", id="ws", action=OBJECTS),
    min_size=1,
    max_size=4,
)
PART_DELTAS = {
    "output_text": ("response.output_text.delta", "text", "content_index"),
    "refusal": ("response.refusal.delta", "refusal", "content_index"),
    "reasoning_text": ("response.reasoning_text.delta", "text", "content_index"),
    "summary_text": ("response.reasoning_summary_text.delta", "text", "summary_index"),
}


def items_events(items: list[Fields], *, are_done: bool) -> Iterator[Fields]:
    yield {"type": "response.created", "response": {"id": "r", "model": "gpt", "status": "in_progress", "output": []}}
    for index, item in enumerate(items):
        at = {"output_index": index}
        begun = {**item, **{name: [] for name in ("content", "summary") if name in item}}
        begun.update({name: "" for name in ("arguments", "input") if name in item})
        yield {"type": "response.output_item.added", "item": begun, **at}
        for parts in (item.get("summary", []), item.get("content", [])):
            for place, part in enumerate(parts):
                kind, name, number = PART_DELTAS[part["type"]]
                for piece in halves(part[name]) or [""]:
                    yield {"type": kind, "delta": piece, number: place, **at}
        for kind, name in (("function_call_arguments", "arguments"), ("custom_tool_call_input", "input")):
            for piece in halves(item.get(name, "")):
                yield {"type": f"response.{kind}.delta", "delta": piece, **at}
        if are_done:
            yield {"type": "response.output_item.done", "item": item, **at}


@given(ITEMS, st.booleans(), st.booleans())
def test_responses(items: list[Fields], are_done: bool, has_output: bool) -> None:
    usage = {"input_tokens": 3, "output_tokens": 5, "output_tokens_details": {"reasoning_tokens": 2}}
    whole = {"id": "r", "model": "gpt", "status": "completed", "output": items, "usage": usage}
    last = whole if has_output else {**whole, "output": []}  # as some servers end a stream

    def events() -> Iterator[Fields]:
        yield from items_events(items, are_done=are_done or not has_output)
        yield {"type": "response.completed", "response": last}

    assert_alike("/responses", whole, events())


@given(ITEMS.filter(lambda items: all(item["type"] != "web_search_call" for item in items)))
def test_responses_that_break_off(items: list[Fields]) -> None:
    whole = {"id": "r", "model": "gpt", "output": items}
    assert_alike("/responses", whole, items_events(items, are_done=False))


# OpenAI's chat and completions


@given(st.lists(messages.filter(lambda said: said["content"] != ""), min_size=1, max_size=2), st.integers(1, 9))
def test_chat(answers: list[Fields], size: int) -> None:
    def placed(found: Fields, place: int) -> Fields:
        return {**found, "choices": [{**choice, "index": place} for choice in found["choices"]]}

    each = [placed(whole(said), place) for place, said in enumerate(answers)]
    together = {**each[0], "choices": [choice for found in each for choice in found["choices"]]}
    # Without the empty text that they begin with.
    events = [placed(chunk, place) for place, said in enumerate(answers) for chunk in chunks(said, size)[1:]]
    streamed, read = assembled("/chat/completions", iter(events)), DIALECTS["/chat/completions"].read(together)
    assert output_messages(streamed) == output_messages(read)
    assert (streamed.id, streamed.output_tokens, streamed.reasoning_tokens) == ("chatcmpl-1", 3, 1)
