"""Anthropic's messages API: `/v1/messages`."""

from typing import Any

from lightning_proxy.answer import (
    Answer,
    AnswerChoice,
    content_parts,
    failure_of,
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
from lightning_proxy.dialects.base import Dialect, Fields, append_text, item_at, merge_usage, read_usage
from lightning_proxy.jsons import dump, parse_object, text
from lightning_proxy.request import Refused, anthropic_error
from lightning_proxy.sse import ServerEvent

_REASONS = {"end_turn": "stop", "stop_sequence": "stop", "max_tokens": "length", "tool_use": "tool_calls"}

_CACHE_TOKENS = ("cache_read_input_tokens", "cache_creation_input_tokens")


class AnthropicDialect(Dialect):
    """Messages of content blocks in, content blocks out. The API gives no token ids."""

    operation = "chat"
    provider = "anthropic"

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
        elif kind == "error":
            answer["error"] = event.get("error") or "the backend reports an error"

    def has_answer(self, answer: Fields) -> bool:
        return isinstance(answer.get("content"), list)

    def unraised_error(self, event: ServerEvent, fields: Fields) -> str | None:
        if fields.get("type") != "error" or event.name == "error":
            return None
        return failure_of(fields.get("error")) or str(fields)

    def is_end(self, event: ServerEvent, fields: Fields | None) -> bool:
        return fields is not None and fields.get("type") == "message_stop"

    def messages(self, request: Fields) -> list[Fields]:
        return [message for given in objects(request.get("messages")) for message in _messages(given)]

    def instructions(self, request: Fields) -> list[Fields]:
        system = request.get("system")
        return content_parts(system) if isinstance(system, str) else [_part(part) for part in objects(system)]

    def tools(self, request: Fields) -> list[Any]:
        return [
            {
                "type": "function",
                "function": {
                    "name": tool.get("name"),
                    "description": tool.get("description"),
                    "parameters": tool.get("input_schema"),
                },
            }
            if tool.get("type", "custom") == "custom"
            else tool  # one of the provider's own
            for tool in objects(request.get("tools"))
        ]

    def error(self, refused: Refused) -> Fields:
        return anthropic_error(refused)

    def error_event(self, refused: Refused) -> bytes:
        return b"event: error\ndata: " + dump(self.error(refused)) + b"\n\n"


def _choice(blocks: list[Fields], reason: Any) -> AnswerChoice:
    texts = [str(block.get("text") or "") for block in blocks if block.get("type") == "text"]
    thoughts = [str(block.get("thinking") or "") for block in blocks if block.get("type") == "thinking"]
    return AnswerChoice(
        parts=[_part(block) for block in blocks],
        content="".join(texts) if texts else None,
        reasoning="".join(thoughts) or None,
        tool_calls=[_tool_call(block) for block in blocks if block.get("type") == "tool_use"],
        finish_reason=_REASONS.get(str(reason), text_of(reason)),
    )


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
