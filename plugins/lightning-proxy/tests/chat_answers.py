"""Answers of chat for tests of the conversions: whole, and cut into the chunks of a stream."""

import json
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies

texts = strategies.text(max_size=20)
values = strategies.recursive(
    strategies.none() | strategies.booleans() | strategies.integers(-(2**53), 2**53) | texts,
    lambda inner: strategies.lists(inner, max_size=2) | strategies.dictionaries(texts, inner, max_size=2),
    max_leaves=4,
)
arguments = strategies.dictionaries(texts, values, max_size=3)
calls = strategies.builds(
    lambda name, given: {"type": "function", "function": {"name": name, "arguments": json.dumps(given)}},
    strategies.text(min_size=1, max_size=8),
    arguments,
)


def message(content: str | None, reasoning: str, called: Sequence[dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {"role": "assistant", "content": content}
    if content == "" and called:
        found["content"] = None
    if reasoning:
        found["reasoning_content"] = reasoning
    if called:
        found["tool_calls"] = [{"id": f"call_{place}", **call} for place, call in enumerate(called)]
    return found


messages = strategies.builds(message, texts, texts, strategies.lists(calls, max_size=3))
"""Messages of a model: reasoning, a text, and tool calls in parallel."""


def whole(said: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
    """The answer of a chat in one piece."""
    reason = reason or ("tool_calls" if said.get("tool_calls") else "stop")
    usage = {"prompt_tokens": 7, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 2}}
    usage["completion_tokens_details"] = {"reasoning_tokens": 1}
    choice = {"index": 0, "message": said, "finish_reason": reason}
    return {"id": "chatcmpl-1", "model": "small", "choices": [choice], "usage": usage}


def chunks(said: dict[str, Any], size: int, reason: str | None = None) -> list[dict[str, Any]]:
    """The same answer as a stream, cut into pieces of so many characters."""
    answer = whole(said, reason)
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    for name in ("reasoning_content", "content"):
        deltas += [{name: piece} for piece in _cut(said.get(name) or "", size)]
    for index, call in enumerate(said.get("tool_calls") or ()):
        function = call["function"]
        begun = {**call, "index": index, "function": {"name": function["name"], "arguments": ""}}
        deltas.append({"tool_calls": [begun]})
        deltas += [
            {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}
            for piece in _cut(function["arguments"], size)
        ]
    head = {"id": answer["id"], "object": "chat.completion.chunk", "model": answer["model"]}
    found = [{**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    ended = {"index": 0, "delta": {}, "finish_reason": answer["choices"][0]["finish_reason"]}
    return [*found, {**head, "choices": [ended]}, {**head, "choices": [], "usage": answer["usage"]}]


def _cut(text: str, size: int) -> list[str]:
    return [text[start : start + size] for start in range(0, len(text), size)]
