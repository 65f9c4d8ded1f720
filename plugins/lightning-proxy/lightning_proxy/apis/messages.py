"""Anthropic's messages API, `/v1/messages`: how it is read, and as chat."""

import secrets
from typing import Any, ClassVar

from lightning_proxy.answer import (
    Answer,
    AnswerChoice,
    choice_of,
    content_parts,
    failure_of,
    function_definition,
    image_part,
    integer,
    mapping,
    objects,
    reasoning_part,
    server_tool_part,
    text_of,
    tool_call_part,
    tool_result,
    tool_result_part,
)
from lightning_proxy.apis.base import Fields, append_text, item_at, merge_usage, read_usage
from lightning_proxy.apis.conversion import (
    NOT_CONVERTIBLE,
    SAME_IN_CHAT,
    Block,
    ChatStream,
    ConvertibleDialect,
    Step,
    Turn,
    arguments_object,
    arguments_text,
    content_of,
    function_tool,
    messages_of,
    named_objects,
    object_at,
    require_known,
    text_at,
    unconvertible,
)
from lightning_proxy.jsons import dump, parse_object, text
from lightning_proxy.request import Refused, anthropic_error, invalid
from lightning_proxy.sse import ServerEvent

_CACHED = frozenset({"type", "cache_control"})
_TOOL = frozenset({"name", "description", "input_schema", "strict", "eager_input_streaming", *_CACHED})
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_KEEPS_THINKING = {"type": "clear_thinking_20251015", "keep": "all"}
_DEFAULT_EFFORT = "high"

_STOP_REASONS = {"length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}
_SIGNATURE = "unsigned"
"""Of reasoning: clients want one, and an engine gives none."""

_REASONS = {"end_turn": "stop", "stop_sequence": "stop", "max_tokens": "length", "tool_use": "tool_calls"}

_CACHE_TOKENS = ("cache_read_input_tokens", "cache_creation_input_tokens")


class MessagesDialect(ConvertibleDialect):
    """Messages of content blocks in, content blocks out. The API itself gives no token ids."""

    path = "/messages"
    operation = "chat"
    provider = "anthropic"
    names: ClassVar = {"stop": ("stop_sequences",), "reasoning_effort": ("output_config.effort",)}
    same: ClassVar = {**SAME_IN_CHAT, "max_tokens": "max_tokens", "stop_sequences": "stop"}
    taken = frozenset(
        {
            *("messages", "system", "tools", "tool_choice", "output_config", "context_management"),
            # Of whose it is, how fast it is, where it is kept; whether a model reasons is up to its chat template.
            *("metadata", "service_tier", "cache_control", "thinking", "inference_geo", "speed"),
        }
    )
    refused = frozenset({"container", "mcp_servers"})  # tools that the provider runs, and where
    hosted_tools = ("web_search_", "web_fetch_", "code_execution_", "tool_search_tool_", "mcp_toolset")

    def read(self, answer: Fields) -> Answer:
        found = Answer(id=text_of(answer.get("id")), model=text_of(answer.get("model")))
        found.failure = failure_of(answer.get("error"))
        if "content" in answer:
            found.choices = [_choice(objects(answer["content"]), answer.get("stop_reason"))]
        usage = mapping(answer.get("usage"))
        read_usage(found, usage)
        if integer(usage.get("input_tokens")) is not None and found.input_tokens is not None:
            # This API counts what is read from a cache, or written to one, apart.
            found.input_tokens += sum(integer(usage.get(name)) or 0 for name in _CACHE_TOKENS)
        return found

    def merge(self, answer: Fields, event: Fields) -> None:
        kind = event.get("type")
        if kind == "message_start":
            message = mapping(event.get("message"))
            answer.update(id=message.get("id"), model=message.get("model"))
            answer.setdefault("content", [])
            merge_usage(answer, message.get("usage"))
        elif kind == "content_block_start":
            item_at(answer.setdefault("content", []), _index(event)).update(mapping(event.get("content_block")))
        elif kind == "content_block_delta":
            block = item_at(answer.setdefault("content", []), _index(event))
            block.setdefault("type", "text")
            for name, piece in mapping(event.get("delta")).items():
                if name in _DELTAS and isinstance(piece, str):
                    append_text(block, _DELTAS[name], piece)
        elif kind == "message_delta":
            answer["stop_reason"] = mapping(event.get("delta")).get("stop_reason") or answer.get("stop_reason")
            merge_usage(answer, event.get("usage"))

    def has_answer(self, answer: Fields) -> bool:
        return isinstance(answer.get("content"), list)

    def is_end(self, event: ServerEvent, fields: Fields | None) -> bool:
        return fields is not None and fields.get("type") == "message_stop"

    def messages(self, request: Fields) -> list[Fields]:
        return [message for given in objects(request.get("messages")) for message in _messages(given)]

    def instructions(self, request: Fields) -> list[Fields]:
        system = request.get("system")
        return content_parts(system) if isinstance(system, str) else [_part(part) for part in objects(system)]

    def tools(self, request: Fields) -> list[Any]:
        # Others than custom ones are the provider's own.
        return [
            function_definition(tool, tool.get("input_schema")) if tool.get("type", "custom") == "custom" else tool
            for tool in objects(request.get("tools"))
        ]

    def error(self, refused: Refused) -> Fields:
        return anthropic_error(refused)

    def error_event(self, refused: Refused) -> bytes:
        return b"event: error\ndata: " + dump(self.error(refused)) + b"\n\n"

    def to_chat(self, fields: Fields) -> Fields:
        chat = self.same_in_chat(fields)
        chat["messages"] = [*_system(fields.get("system")), *_chat_messages(fields.get("messages"))]
        if tools := [_tool(tool, name) for name, tool in named_objects(fields.get("tools"), "tools")]:
            chat["tools"] = tools
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

    def stream(self, request: Fields) -> ChatStream:
        return _MessagesStream(request)


def _choice(blocks: list[Fields], reason: Any) -> AnswerChoice:
    calls = [_tool_call(block) for block in blocks if block.get("type") == "tool_use"]
    return choice_of([_part(block) for block in blocks], calls, _REASONS.get(str(reason), text_of(reason)))


def _tool_call(block: Fields) -> dict[str, Any]:
    given = block.get("input")
    if isinstance(given, str):  # of a stream, which has the text of the object
        read = parse_object(given.encode("utf-8", "surrogatepass")) if given else {}
        given = given if read is None else read
    arguments = given if isinstance(given, str) else text({} if given is None else given)
    return {"id": block.get("id"), "type": "function", "function": {"name": block.get("name"), "arguments": arguments}}


def _messages(given: Fields) -> list[Fields]:
    """Turn a message into the conventions'; results of tools, which stand in a user's message here, come before it."""
    content = given.get("content")
    if isinstance(content, str):
        return [{"role": given.get("role"), "parts": content_parts(content)}]
    results: list[Fields] = []
    plain: list[Fields] = []
    for block in objects(content):
        if block.get("type") == "tool_result":
            result = _result(block)
            results.append({"role": "tool", "parts": [result]})
        else:
            plain.append(_part(block))
    return [*results, {"role": given.get("role"), "parts": plain}] if plain else results


def _part(block: Fields) -> Fields:
    kind = block.get("type")
    if kind == "text":
        return {"type": "text", "content": block.get("text")}
    if kind == "thinking":
        return reasoning_part(block.get("thinking"), signature=block.get("signature"))
    if kind == "redacted_thinking":
        return reasoning_part("", redacted=block.get("data"))
    if kind == "tool_result":
        return _result(block)
    if kind == "tool_use":
        return tool_call_part(_tool_call(block))
    if kind == "image":
        source = mapping(block.get("source"))
        if source.get("type") == "base64":
            return image_part(f"data:{source.get('media_type')};base64,{source.get('data')}")
        if source.get("type") == "file":
            return {"type": "file", "modality": "image", "file_id": source.get("file_id")}
        return image_part(str(source.get("url")))
    if kind in ("server_tool_use", "mcp_tool_use"):
        called = mapping(_tool_call(block)["function"])
        return server_tool_part({**block, "input": called["arguments"]}, str(block.get("name")))
    if isinstance(kind, str) and kind.endswith("_tool_result"):
        return server_tool_part(block, kind, is_result=True)
    return {name: value for name, value in block.items() if name != "index"}


def _result(block: Fields) -> Fields:
    content = block.get("content")
    if not isinstance(content, str) and content is not None:
        content = tool_result([_part(each) for each in objects(content)])
    return tool_result_part(block.get("tool_use_id"), content, is_error=block.get("is_error") is True)


def _index(event: Fields) -> int:
    index = event.get("index")
    return index if isinstance(index, int) else 0


_DELTAS = {"text": "text", "partial_json": "input", "thinking": "thinking", "signature": "signature"}
"""The fields of a delta, and those of the block that they are pieces of."""


# From messages to chat


def _system(system: Any) -> list[Fields]:
    if isinstance(system, str):
        return [{"role": "system", "content": system}] if system else []
    parts = [_text_part(block, name) for name, block in named_objects(system, "system")]
    return [{"role": "system", "content": content_of(parts)}] if parts else []


def _chat_messages(messages: Any) -> list[Fields]:
    given = named_objects(messages, "messages")
    if not given:
        raise invalid("messages is empty; it has at least the user's message")
    chat_messages: list[Fields | Turn] = []
    for name, message in given:
        role = message.get("role")
        if role == "assistant":
            chat_messages.append(_turn(message, name))
        elif role in ("user", "system"):
            chat_messages += _user(str(role), message, name)
        else:
            raise invalid(f"{name}.role is {role!r:.100}; it is 'user' or 'assistant'")
    if isinstance(chat_messages[-1], Turn):
        raise unconvertible(given[-1][0], "is the beginning of an answer; end with the user's message")
    return messages_of(chat_messages)


def _blocks(message: Fields, name: str) -> list[tuple[str, Fields]]:
    """Return the blocks of a message with their names."""
    require_known(message, {"role", "content"}, name)
    content = message.get("content")
    if isinstance(content, str):
        return [(f"{name}.content", {"type": "text", "text": content})]
    return named_objects(content, f"{name}.content")


def _turn(message: Fields, name: str) -> Turn:
    turn = Turn()
    for where, block in _blocks(message, name):
        kind = block.get("type")
        if kind == "text":
            turn.texts.append(_text_part(block, where)["text"])
        elif kind == "thinking":
            require_known(block, {"thinking", "signature", *_CACHED}, where)
            turn.reasoning.append(text_at(block, "thinking", where))
        elif kind == "tool_use":
            caller = {"caller"} if mapping(block.get("caller")).get("type") == "direct" else set()
            require_known(block, {"id", "name", "input", *_CACHED, *caller}, where)
            arguments = arguments_text(block.get("input"))
            turn.add_call(text_at(block, "id", where), text_at(block, "name", where), arguments)
        else:
            raise unconvertible(f"{where}.type", f"is {kind!r:.100}; an answer has text, thinking and tool_use")
    return turn


def _user(role: str, message: Fields, name: str) -> list[Fields]:
    """Return a message of the user; results of tools in it are messages of their own in chat."""
    messages: list[Fields] = []
    parts: list[Fields] = []
    for where, block in _blocks(message, name):
        if block.get("type") == "tool_result" and role == "user":
            if parts:
                messages.append({"role": role, "content": content_of(parts)})
                parts = []
            messages.append(_tool_result(block, where))
        else:
            parts.append(_chat_part(block, where))
    if parts or not messages:
        messages.append({"role": role, "content": content_of(parts)})
    return messages


def _tool_result(block: Fields, name: str) -> Fields:
    require_known(block, {"tool_use_id", "content", "is_error", *_CACHED}, name)
    content = block.get("content")
    if isinstance(content, list):
        content = content_of([_chat_part(each, where) for where, each in named_objects(content, f"{name}.content")])
    elif not isinstance(content, str | None):
        raise invalid(f"{name}.content is {content!r:.100}; it is a text, or a list of blocks")
    result: Fields = {"role": "tool", "tool_call_id": text_at(block, "tool_use_id", name), "content": content or ""}
    if block.get("is_error") is True:
        result["is_error"] = True  # chat's tool messages have no such field; the model sees it if its template does
    return result


def _chat_part(block: Fields, name: str) -> Fields:
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
    return function_tool(tool, name, parameters="input_schema")


def _tool_choice(choice: Fields) -> Fields:
    require_known(choice, {"type", "name", "disable_parallel_tool_use"}, "tool_choice")
    kind = choice.get("type")
    fields: Fields = {}
    if kind == "tool":
        function = {"name": text_at(choice, "name", "tool_choice")}
        fields["tool_choice"] = {"type": "function", "function": function}
    elif kind in _CHOICES:
        fields["tool_choice"] = _CHOICES[kind]
    else:
        raise invalid(f"tool_choice.type is {kind!r:.100}; it is auto, any, tool or none")
    if choice.get("disable_parallel_tool_use") is True:
        fields["parallel_tool_calls"] = False
    return fields


def _output_config(config: Fields) -> Fields:
    require_known(config, {"effort", "format"}, "output_config")
    fields: Fields = {}
    if config.get("effort") not in (None, _DEFAULT_EFFORT):
        fields["reasoning_effort"] = config["effort"]
    if config.get("format") is not None:
        wanted = object_at(config, "format", "output_config")
        require_known(wanted, {"type", "schema"}, "output_config.format")
        if wanted.get("type") != "json_schema":
            raise unconvertible("output_config.format.type", f"is {wanted.get('type')!r:.100}; it is 'json_schema'")
        schema = {"name": "answer", "schema": wanted.get("schema"), "strict": True}
        fields["response_format"] = {"type": "json_schema", "json_schema": schema}
    return fields


def _check_context_management(management: Fields) -> None:
    """Refuse edits of the conversation, but for the one that changes nothing."""
    require_known(management, {"edits"}, "context_management")
    for name, edit in named_objects(management.get("edits"), "context_management.edits"):
        if edit != _KEEPS_THINKING:
            raise unconvertible(name, f"is {edit!r:.100}; leave it out")


# From chat to messages


class _MessagesStream(ChatStream):
    def __init__(self, request: Fields) -> None:
        super().__init__(request, f"msg_{secrets.token_hex(12)}")

    def feed(self, chunk: Fields) -> list[Fields]:
        # Where tools are offered, an engine of tokens tells its text at the end: the agent is to wait for it.
        goes_on = any(choice.get("finish_reason") is None for choice in objects(chunk.get("choices")))
        return super().feed(chunk) or ([{"type": "ping"}] if goes_on else [])

    def begin(self) -> list[Fields]:
        message = {**self._head(), "content": [], "stop_reason": None, "stop_sequence": None, "usage": self._usage()}
        return [{"type": "message_start", "message": message}]

    def events(self, step: Step) -> list[Fields]:
        block = step.block
        if step.what == "begin":
            return [{"type": "content_block_start", "index": block.index, "content_block": _begun(block)}]
        if step.what == "piece":
            kind, name = _CHAT_DELTAS[block.kind]
            return [_delta(block, {"type": kind, name: step.text})]
        signature = {"type": "signature_delta", "signature": _SIGNATURE}
        signed = [_delta(block, signature)] if block.kind == "reasoning" else []
        return [*signed, {"type": "content_block_stop", "index": block.index}]

    def end(self) -> list[Fields]:
        return [{"type": "message_delta", "delta": self._ending(), "usage": self._usage()}, {"type": "message_stop"}]

    def answer(self) -> Fields:
        content = [_content_block(block) for block in self.read.blocks]
        return {**self._head(), "content": content, **self._ending(), "usage": self._usage()}

    def _head(self) -> Fields:
        model = self.request.get("model") or self.read.model or ""
        return {"id": self.id, "type": "message", "role": "assistant", "model": model}

    def _ending(self) -> Fields:
        read = self.read
        reason = read.finish_reason or "stop"
        if reason == "stop" and read.calls_tools:
            reason = "tool_calls"  # which engines say of a call that they were told to make
        if reason == "stop":
            is_ours = read.stop_sequence in (self.request.get("stop_sequences") or ())
            return {
                "stop_reason": "stop_sequence" if is_ours else "end_turn",
                "stop_sequence": read.stop_sequence if is_ours else None,
            }
        if reason not in _STOP_REASONS:
            raise Refused(502, NOT_CONVERTIBLE, f"the engine ended its answer with {reason!r}")
        return {"stop_reason": _STOP_REASONS[reason], "stop_sequence": None}

    def _usage(self) -> Fields:
        read = self.read
        return {
            "input_tokens": read.input_tokens - read.cached_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": read.cached_tokens,
            "output_tokens": read.output_tokens,
        }


def _begun(block: Block) -> Fields:
    if block.kind == "text":
        return {"type": "text", "text": ""}
    if block.kind == "reasoning":
        return {"type": "thinking", "thinking": "", "signature": ""}
    return {"type": "tool_use", "id": block.call_id, "name": block.name, "input": {}}


def _content_block(block: Block) -> Fields:
    begun = _begun(block)
    if block.kind == "text":
        return begun | {"text": block.text}
    if block.kind == "reasoning":
        return begun | {"thinking": block.text, "signature": _SIGNATURE}
    return begun | {"input": arguments_object(block.text)}


_CHAT_DELTAS = {
    "text": ("text_delta", "text"),
    "reasoning": ("thinking_delta", "thinking"),
    "call": ("input_json_delta", "partial_json"),
}


def _delta(block: Block, delta: Fields) -> Fields:
    return {"type": "content_block_delta", "index": block.index, "delta": delta}
