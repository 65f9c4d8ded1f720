"""Anthropic's messages API, `/v1/messages`, as chat."""

import json
import secrets
from typing import Any

from lightning_proxy.answer import mapping
from lightning_proxy.conversion.base import (
    NOT_CONVERTIBLE,
    SAME_IN_CHAT,
    Block,
    ChatAnswer,
    Conversion,
    Fields,
    Step,
    StreamConversion,
    content_of,
    list_of_objects,
    object_at,
    require_known,
    text_at,
    unconvertible,
)
from lightning_proxy.jsons import text
from lightning_proxy.request import Refused

_CONVERTED = frozenset(
    {
        *("messages", "system", "max_tokens", "stop_sequences", "tools", "tool_choice"),
        *("output_config", "context_management"),
    }
)
_WITHOUT_MEANING = frozenset({"metadata", "service_tier", "cache_control", "thinking", "inference_geo", "speed"})
"""Of whose it is, how fast it is, where it is kept; whether a model reasons is up to its chat template."""

_CACHED = frozenset({"type", "cache_control"})
_TOOL = frozenset({"name", "description", "input_schema", "strict", "eager_input_streaming", *_CACHED})
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_KEEPS_THINKING = {"type": "clear_thinking_20251015", "keep": "all"}
_DEFAULT_EFFORT = "high"

_REASONS = {"length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}
_SIGNATURE = "unsigned"
"""Of reasoning: clients want one, and an engine gives none."""
_INVALID = "INVALID_JSON"
"""In an input, alone: the arguments as the model wrote them, which are no JSON object. Anthropic's name for it."""


class MessagesConversion(Conversion):
    """Messages of content blocks, and chat messages."""

    hosted_tools = ("web_search_", "web_fetch_", "code_execution_", "tool_search_tool_", "mcp_toolset")

    def request(self, fields: Fields) -> Fields:
        require_known(fields, SAME_IN_CHAT | _CONVERTED | _WITHOUT_MEANING)
        chat: Fields = {name: fields[name] for name in SAME_IN_CHAT if fields.get(name) is not None}
        chat["messages"] = [*_system(fields.get("system")), *_messages(fields.get("messages"))]
        if fields.get("max_tokens") is not None:
            chat["max_tokens"] = fields["max_tokens"]
        if fields.get("stop_sequences"):
            chat["stop"] = fields["stop_sequences"]
        tools = list_of_objects(fields.get("tools"), "tools")
        if tools:
            chat["tools"] = [_tool(tool, f"tools[{place}]") for place, tool in enumerate(tools)]
        if fields.get("tool_choice") is not None:
            chat.update(_tool_choice(object_at(fields, "tool_choice")))
        chat.update(_output_config(object_at(fields, "output_config")))
        _check_context_management(object_at(fields, "context_management"))
        return chat

    def overflow(self, message: str, tokens: int, most: int, fields: Fields) -> str:
        if tokens < most:
            asked = f"{tokens} + {fields.get('max_tokens')} > {most}"
            return f"input length and `max_tokens` exceed context limit: {asked}, decrease one of them and try again"
        return f"prompt is too long: {tokens} tokens > {most} maximum"

    def answer(self, chat: Fields, request: Fields) -> Fields:
        read = ChatAnswer()
        read.feed(chat)
        read.finish()
        return {
            **_head(read, request, _new_id()),
            "content": [_content_block(block) for block in read.blocks],
            **_ending(read, request),
            "usage": _usage(read),
        }

    def stream(self, request: Fields) -> StreamConversion:
        return _MessagesStream(request)


class _MessagesStream(StreamConversion):
    def __init__(self, request: Fields) -> None:
        self._request = request
        self._read = ChatAnswer()
        self.id = _new_id()
        self._has_begun = False

    def feed(self, chunk: Fields) -> list[Fields]:
        steps = self._read.feed(chunk)
        return [*self._begin(), *(event for step in steps for event in _events(step))]

    def finish(self) -> list[Fields]:
        read = self._read
        return [
            *self._begin(),
            *(event for step in read.finish() for event in _events(step)),
            {"type": "message_delta", "delta": _ending(read, self._request), "usage": _usage(read)},
            {"type": "message_stop"},
        ]

    def _begin(self) -> list[Fields]:
        if self._has_begun:
            return []
        self._has_begun = True
        head = _head(self._read, self._request, self.id)
        message = {**head, "content": [], "stop_reason": None, "stop_sequence": None, "usage": _usage(self._read)}
        return [{"type": "message_start", "message": message}]


# From messages to chat


def _system(system: Any) -> list[Fields]:
    if isinstance(system, str):
        return [{"role": "system", "content": system}] if system else []
    parts = [_text_part(block, f"system[{place}]") for place, block in enumerate(list_of_objects(system, "system"))]
    return [{"role": "system", "content": content_of(parts)}] if parts else []


def _messages(messages: Any) -> list[Fields]:
    given = list_of_objects(messages, "messages")
    if not given:
        raise Refused(400, "invalid_request", "messages is empty; it has at least the user's message")
    found: list[Fields] = []
    for place, message in enumerate(given):
        name, role = f"messages[{place}]", message.get("role")
        if role == "assistant":
            found.append(_assistant(message, name))
        elif role in ("user", "system"):
            found += _user(str(role), message, name)
        else:
            raise Refused(400, "invalid_request", f"{name}.role is {role!r:.100}; it is 'user' or 'assistant'")
    if given[-1].get("role") == "assistant":
        raise unconvertible(f"messages[{len(given) - 1}]", "is the beginning of an answer; end with the user's message")
    return found


def _blocks(message: Fields, name: str) -> list[tuple[str, Fields]]:
    """Return the blocks of a message with their names."""
    require_known(message, {"role", "content"}, name)
    content = message.get("content")
    if isinstance(content, str):
        return [(f"{name}.content", {"type": "text", "text": content})]
    blocks = list_of_objects(content, f"{name}.content")
    return [(f"{name}.content[{place}]", block) for place, block in enumerate(blocks)]


def _assistant(message: Fields, name: str) -> Fields:
    texts, reasoning, calls = [], [], []
    for where, block in _blocks(message, name):
        kind = block.get("type")
        if kind == "text":
            texts.append(_text_part(block, where)["text"])
        elif kind == "thinking":
            require_known(block, {"thinking", "signature", *_CACHED}, where)
            reasoning.append(text_at(block, "thinking", where))
        elif kind == "tool_use":
            calls.append(_tool_call(block, where))
        else:
            raise unconvertible(f"{where}.type", f"is {kind!r:.100}; an answer has text, thinking and tool_use")
    found: Fields = {"role": "assistant", "content": "".join(texts) if texts or not calls else None}
    if reasoning:
        found["reasoning_content"] = "".join(reasoning)
    if calls:
        found["tool_calls"] = calls
    return found


def _tool_call(block: Fields, name: str) -> Fields:
    caller = mapping(block.get("caller"))
    known = {"id", "name", "input", *_CACHED, *({"caller"} if caller.get("type") == "direct" else ())}
    require_known(block, known, name)
    given = {} if block.get("input") is None else block["input"]  # what a model wrote badly may be a list or a number
    is_invalid = isinstance(given, dict) and list(given) == [_INVALID] and isinstance(given[_INVALID], str)
    arguments = given[_INVALID] if is_invalid else text(given)
    function = {"name": text_at(block, "name", name), "arguments": arguments}
    return {"id": text_at(block, "id", name), "type": "function", "function": function}


def _user(role: str, message: Fields, name: str) -> list[Fields]:
    """Return a message of the user; results of tools in it are messages of their own in chat."""
    found: list[Fields] = []
    parts: list[Fields] = []
    for where, block in _blocks(message, name):
        if block.get("type") == "tool_result" and role == "user":
            if parts:
                found.append({"role": role, "content": content_of(parts)})
                parts = []
            found.append(_tool_result(block, where))
        else:
            parts.append(_part(block, where))
    if parts or not found:
        found.append({"role": role, "content": content_of(parts) if parts else ""})
    return found


def _tool_result(block: Fields, name: str) -> Fields:
    require_known(block, {"tool_use_id", "content", "is_error", *_CACHED}, name)
    content = block.get("content")
    if isinstance(content, list):
        blocks = list_of_objects(content, f"{name}.content")
        parts = [_part(each, f"{name}.content[{place}]") for place, each in enumerate(blocks)]
        content = content_of(parts) if parts else ""
    elif not isinstance(content, str | None):
        raise Refused(400, "invalid_request", f"{name}.content is {content!r:.100}; it is a text, or a list of blocks")
    found: Fields = {"role": "tool", "tool_call_id": text_at(block, "tool_use_id", name), "content": content or ""}
    if block.get("is_error") is True:
        found["is_error"] = True  # chat's tool messages have no such field; the model sees it if its template does
    return found


def _part(block: Fields, name: str) -> Fields:
    kind = block.get("type")
    if kind == "text":
        return _text_part(block, name)
    if kind == "image":
        require_known(block, {"source", *_CACHED}, name)
        source = object_at(block, "source", name)
        if source.get("type") == "base64":
            url = f"data:{text_at(source, 'media_type', f'{name}.source')};base64,{text_at(source, 'data', name)}"
            return {"type": "image_url", "image_url": {"url": url}}
        if source.get("type") == "url":
            return {"type": "image_url", "image_url": {"url": text_at(source, "url", f"{name}.source")}}
        raise unconvertible(f"{name}.source.type", f"is {source.get('type')!r:.100}; send the image as base64 or url")
    raise unconvertible(f"{name}.type", f"is {kind!r:.100}; send text or an image")


def _text_part(block: Fields, name: str) -> Fields:
    if block.get("type") != "text":
        raise unconvertible(f"{name}.type", f"is {block.get('type')!r:.100}; send text")
    require_known(block, {"text", *_CACHED, *(() if block.get("citations") else ("citations",))}, name)
    return {"type": "text", "text": text_at(block, "text", name)}


def _tool(tool: Fields, name: str) -> Fields:
    if tool.get("type") not in (None, "custom"):
        raise unconvertible(f"{name}.type", f"is {tool['type']!r:.100}, which the provider runs; turn this tool off")
    require_known(tool, _TOOL, name)
    function: Fields = {"name": text_at(tool, "name", name)}
    for theirs, field_name in (("description", "description"), ("input_schema", "parameters"), ("strict", "strict")):
        if tool.get(theirs) is not None:
            function[field_name] = tool[theirs]
    return {"type": "function", "function": function}


def _tool_choice(choice: Fields) -> Fields:
    require_known(choice, {"type", "name", "disable_parallel_tool_use"}, "tool_choice")
    kind = choice.get("type")
    found: Fields = {}
    if kind == "tool":
        function = {"name": text_at(choice, "name", "tool_choice")}
        found["tool_choice"] = {"type": "function", "function": function}
    elif kind in _CHOICES:
        found["tool_choice"] = _CHOICES[kind]
    else:
        raise Refused(400, "invalid_request", f"tool_choice.type is {kind!r:.100}; it is auto, any, tool or none")
    if choice.get("disable_parallel_tool_use") is True:
        found["parallel_tool_calls"] = False
    return found


def _output_config(config: Fields) -> Fields:
    require_known(config, {"effort", "format"}, "output_config")
    found: Fields = {}
    if config.get("effort") not in (None, _DEFAULT_EFFORT):
        found["reasoning_effort"] = config["effort"]
    if config.get("format") is not None:
        wanted = object_at(config, "format", "output_config")
        require_known(wanted, {"type", "schema"}, "output_config.format")
        if wanted.get("type") != "json_schema":
            raise unconvertible("output_config.format.type", f"is {wanted.get('type')!r:.100}; it is 'json_schema'")
        schema = {"name": "answer", "schema": wanted.get("schema"), "strict": True}
        found["response_format"] = {"type": "json_schema", "json_schema": schema}
    return found


def _check_context_management(management: Fields) -> None:
    """Refuse edits of the conversation, but for the one that changes nothing."""
    require_known(management, {"edits"}, "context_management")
    for place, edit in enumerate(list_of_objects(management.get("edits"), "context_management.edits")):
        if edit != _KEEPS_THINKING:
            raise unconvertible(f"context_management.edits[{place}]", f"is {edit!r:.100}; leave it out")


# From chat to messages


def _new_id() -> str:
    return f"msg_{secrets.token_hex(12)}"


def _head(read: ChatAnswer, request: Fields, message_id: str) -> Fields:
    model = request.get("model") or read.model or ""
    return {"id": message_id, "type": "message", "role": "assistant", "model": model}


def _ending(read: ChatAnswer, request: Fields) -> Fields:
    reason = read.finish_reason or "stop"
    if reason == "stop" and read.calls_tools:
        reason = "tool_calls"  # which engines say of a call that they were told to make
    if reason == "stop":
        is_ours = read.stop_sequence in (request.get("stop_sequences") or ())
        return {
            "stop_reason": "stop_sequence" if is_ours else "end_turn",
            "stop_sequence": read.stop_sequence if is_ours else None,
        }
    if reason not in _REASONS:
        raise Refused(502, NOT_CONVERTIBLE, f"the engine ended its answer with {reason!r}")
    return {"stop_reason": _REASONS[reason], "stop_sequence": None}


def _usage(read: ChatAnswer) -> Fields:
    return {
        "input_tokens": read.input_tokens - read.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": read.cached_tokens,
        "output_tokens": read.output_tokens,
    }


def _content_block(block: Block) -> Fields:
    if block.kind == "text":
        return {"type": "text", "text": block.text}
    if block.kind == "reasoning":
        return {"type": "thinking", "thinking": block.text, "signature": _SIGNATURE}
    return {"type": "tool_use", "id": block.call_id, "name": block.name, "input": _input(block)}


def _input(block: Block) -> Fields:
    """Return the arguments of a call. A model may call with what is no JSON object: that is its answer, too."""
    try:
        found = json.loads(block.text or "{}")
        json.dumps(found, allow_nan=False)
    except (ValueError, RecursionError):
        found = None
    return found if isinstance(found, dict) else {_INVALID: block.text}


def _events(step: Step) -> list[Fields]:
    block = step.block
    if step.what == "begin":
        begun: Fields = {"type": "text", "text": ""}
        if block.kind == "reasoning":
            begun = {"type": "thinking", "thinking": "", "signature": ""}
        elif block.kind == "call":
            begun = {"type": "tool_use", "id": block.call_id, "name": block.name, "input": {}}
        return [{"type": "content_block_start", "index": block.index, "content_block": begun}]
    if step.what == "piece":
        kind, name = _DELTAS[block.kind]
        return [_delta(block, {"type": kind, name: step.text})]
    signed = [_delta(block, {"type": "signature_delta", "signature": _SIGNATURE})] if block.kind == "reasoning" else []
    return [*signed, {"type": "content_block_stop", "index": block.index}]


_DELTAS = {
    "text": ("text_delta", "text"),
    "reasoning": ("thinking_delta", "thinking"),
    "call": ("input_json_delta", "partial_json"),
}


def _delta(block: Block, delta: Fields) -> Fields:
    return {"type": "content_block_delta", "index": block.index, "delta": delta}
