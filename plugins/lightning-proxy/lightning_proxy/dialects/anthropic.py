"""Anthropic's messages API: `/v1/messages`."""

from typing import Any

from lightning_proxy import parts
from lightning_proxy.answer import Answer, AnswerChoice, failure_of, integer, mapping, objects, text_of
from lightning_proxy.dialects.base import Assembler, Dialect, Fields
from lightning_proxy.dialects.openai_tokens import read_usage
from lightning_proxy.jsons import dump, text
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
        found.choices = [_choice(objects(answer.get("content")), answer.get("stop_reason"))]
        _read_usage(found, mapping(answer.get("usage")))
        return found

    def assembler(self) -> Assembler:
        return AnthropicAssembler()

    def messages(self, request: Fields) -> list[Fields]:
        return [message for given in objects(request.get("messages")) for message in _messages(given)]

    def instructions(self, request: Fields) -> list[Fields]:
        system = request.get("system")
        return parts.content_parts(system) if isinstance(system, str) else [_part(part) for part in objects(system)]

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
            for tool in objects(request.get("tools"))
        ]

    def error(self, refused: Refused) -> Fields:
        return anthropic_error(refused)

    def error_event(self, refused: Refused) -> bytes:
        return b"event: error\ndata: " + dump(self.error(refused)) + b"\n\n"


def _read_usage(found: Answer, usage: Fields) -> None:
    """Take note of the numbers of tokens. This API counts what is read from a cache, or written to one, apart."""
    read_usage(found, usage)
    if integer(usage.get("input_tokens")) is not None and found.input_tokens is not None:
        found.input_tokens += sum(integer(usage.get(name)) or 0 for name in _CACHE_TOKENS)


def _choice(blocks: list[Fields], reason: Any) -> AnswerChoice:
    texts = [str(block.get("text") or "") for block in blocks if block.get("type") == "text"]
    thoughts = [str(block.get("thinking") or "") for block in blocks if block.get("type") == "thinking"]
    return AnswerChoice(
        content="".join(texts) if texts else None,
        reasoning="".join(thoughts) or None,
        tool_calls=[_tool_call(block) for block in blocks if block.get("type") == "tool_use"],
        finish_reason=_REASONS.get(str(reason), text_of(reason)),
    )


def _tool_call(block: Fields) -> dict[str, Any]:
    given = block.get("input")
    arguments = given if isinstance(given, str) else text({} if given is None else given)
    return {"id": block.get("id"), "type": "function", "function": {"name": block.get("name"), "arguments": arguments}}


def _messages(given: Fields) -> list[Fields]:
    """Turn a message into the conventions'; results of tools, which stand in a user's message here, come before it."""
    content = given.get("content")
    if isinstance(content, str):
        return [{"role": given.get("role"), "parts": parts.content_parts(content)}]
    results: list[Fields] = []
    plain: list[Fields] = []
    for block in objects(content):
        if block.get("type") == "tool_result":
            result = parts.tool_result_part(block.get("tool_use_id"), _flat(block.get("content")))
            results.append({"role": "tool", "parts": [result]})
        else:
            plain.append(_part(block))
    return [*results, {"role": given.get("role"), "parts": plain}] if plain else results


def _part(block: Fields) -> Fields:
    kind = block.get("type")
    if kind == "text":
        return {"type": "text", "content": block.get("text")}
    if kind == "thinking":
        return {"type": "reasoning", "content": block.get("thinking")}
    if kind == "tool_use":
        return parts.tool_call_part(_tool_call(block))
    if kind == "image":
        source = mapping(block.get("source"))
        if source.get("type") == "base64":
            return parts.image_part(f"data:{source.get('media_type')};base64,{source.get('data')}")
        return parts.image_part(str(source.get("url")))
    return block


def _flat(content: Any) -> Any:
    if isinstance(content, str) or content is None:
        return content
    return "".join(str(block.get("text") or "") for block in objects(content))


class AnthropicAssembler(Assembler):
    """Makes the answer of the pieces of a streamed one."""

    def __init__(self) -> None:
        super().__init__()
        self._blocks: dict[int, Fields] = {}
        self._pieces: dict[int, dict[str, list[str]]] = {}
        self._reason: Any = None
        self._usage: Fields = {}

    def feed(self, event: ServerEvent, fields: Fields | None) -> None:
        if fields is None:
            return
        kind = fields.get("type")
        if kind == "message_start":
            message = mapping(fields.get("message"))
            self.answer.id, self.answer.model = text_of(message.get("id")), text_of(message.get("model"))
            self._take_usage(message.get("usage"))
        elif kind == "content_block_start":
            self._blocks[_place(fields)] = dict(mapping(fields.get("content_block")))
        elif kind == "content_block_delta":
            pieces = self._pieces.setdefault(_place(fields), {})
            for name, piece in mapping(fields.get("delta")).items():
                if name in _DELTAS and isinstance(piece, str):
                    pieces.setdefault(_DELTAS[name], []).append(piece)
        elif kind == "message_delta":
            self._reason = mapping(fields.get("delta")).get("stop_reason") or self._reason
            self._take_usage(fields.get("usage"))
        elif kind == "message_stop":
            self.is_complete = True
        elif kind == "error":
            self.answer.failure = str(mapping(fields.get("error")).get("message") or "the backend reports an error")

    def _take_usage(self, usage: Any) -> None:
        """Take the numbers of an event; each event has only those that it knows."""
        self._usage |= {name: count for name, count in mapping(usage).items() if count is not None}
        _read_usage(self.answer, self._usage)

    def finish(self) -> Answer:
        for place, pieces in self._pieces.items():
            block = self._blocks.setdefault(place, {"type": "text"})
            for name, texts in pieces.items():
                begun = block.get(name)
                block[name] = (begun if isinstance(begun, str) else "") + "".join(texts)
        self._pieces = {}
        if self._blocks:
            self.answer.choices = [_choice([self._blocks[place] for place in sorted(self._blocks)], self._reason)]
        return self.answer


_DELTAS = {"text": "text", "partial_json": "input", "thinking": "thinking"}


def _place(fields: Fields) -> int:
    index = fields.get("index")
    return index if isinstance(index, int) else 0
