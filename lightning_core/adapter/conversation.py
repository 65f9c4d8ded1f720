"""Messages and tools in the form of OpenAI's chat API, from whatever form they were recorded in, and back."""

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from lightning_core.adapter.attributes import decoded, entries

logger = logging.getLogger(__name__)

Messages = list[dict[str, Any]]

_CONTENT_PARTS = frozenset({"text", "image_url", "input_audio", "file", "refusal"})
"""The types of a content part in OpenAI's API."""
_WITHOUT_MESSAGE = frozenset({"server_tool_call", "server_tool_call_response", "item_reference", "prompt"})
"""Parts of the conventions that OpenAI's chat API has nothing for."""


def chat_messages(given: Any, *, role: str | None = None, form: Callable[[Any], Any] = decoded) -> Messages:
    """Turn recorded messages into OpenAI's.

    A message may be OpenAI's own, AgentOps' flat one, or one with GenAI `parts`. An entry that tells no role, not
    even by what it holds, is logged and left out.

    Args:
        given: A list of messages, a dict of them by position, one message, or JSON of any of these.
        role: The role of a message that tells none.
        form: Makes one of these messages of an entry.
    """
    given = decoded(given)
    if isinstance(given, Mapping) and not any(str(name).isdigit() for name in given):
        given = [given]
    messages: Messages = []
    for entry in entries(given):
        message = form(entry)
        if isinstance(message, Mapping):
            is_in_parts = isinstance(decoded(message.get("parts")), (list, tuple))
            messages += (_read_parts if is_in_parts else _read_fields)(message, message.get("role") or role)
    return messages


def chat_tools(given: Any, *, form: Callable[[Any], Any] = decoded) -> list[dict[str, Any]]:
    """Turn recorded tool definitions into OpenAI's; an entry without a name is left out."""
    tools = []
    for entry in entries(decoded(given)):
        tool = form(entry)
        function = tool.get("function", tool) if isinstance(tool, Mapping) else None
        if isinstance(function, Mapping) and function.get("name"):
            definition = {"name": function["name"], "description": function.get("description") or ""}
            if function.get("parameters") is not None:
                definition["parameters"] = decoded(function["parameters"])
            tools.append({"type": "function", "function": definition})
    return tools


def chat_tool_calls(given: Any) -> list[dict[str, Any]]:
    """Turn recorded tool calls into OpenAI's; one without an id is called `call_` and its position."""
    calls = []
    for position, entry in enumerate(entries(decoded(given))):
        call = decoded(entry)
        if not isinstance(call, Mapping):
            continue
        function = decoded(call.get("function"))
        source = function if isinstance(function, Mapping) else call
        if source.get("name"):
            arguments = "{}" if source.get("arguments") is None else as_text(source["arguments"])
            made = {"name": source["name"], "arguments": arguments}
            calls.append({"id": call.get("id") or f"call_{position}", "type": "function", "function": made})
    return calls


def assistant_message(content: Any, tool_calls: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Make the message of an answer. Its content is None only beside tool calls."""
    content = _content(content)
    if tool_calls:
        return {"role": "assistant", "content": content or None, "tool_calls": list(tool_calls)}
    return {"role": "assistant", "content": "" if content is None else content}


def as_text(value: Any) -> str:
    """Return a text as it is, nothing as an empty one, anything else as JSON."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _read_fields(message: Mapping[str, Any], role: str | None) -> Messages:
    calls = chat_tool_calls(message.get("tool_calls")) or chat_tool_calls([message.get("function_call")])
    answered = message.get("tool_call_id")
    role = role or ("assistant" if calls else "tool" if answered else None)
    content = message.get("content")
    if role is None:
        return _left_out(message)
    if role == "assistant":
        return [_with_reasoning(assistant_message(content, calls), message.get("reasoning_content"))]
    if role == "tool":
        return [_tool_result(as_text(content), answered or message.get("id"))]
    plain = {"role": role, "content": "" if content is None else _content(content)}
    return [{**plain, "name": message["name"]} if message.get("name") else plain]


def _read_parts(message: Mapping[str, Any], role: str | None) -> Messages:
    content: list[dict[str, Any]] = []
    calls: list[Mapping[str, Any]] = []
    results: Messages = []
    reasoning = ""
    is_passed_over = False
    for part in map(decoded, entries(decoded(message["parts"]))):
        if not isinstance(part, Mapping):
            continue
        match part.get("type"):
            case "tool_call" | "function_call":
                calls.append(part)
            case "tool_call_response":
                results.append(_tool_result(as_text(part.get("response", part.get("result"))), part.get("id")))
            case "reasoning":
                reasoning += as_text(part.get("content"))
            case kind if kind in _WITHOUT_MESSAGE:
                is_passed_over = True
            case kind:
                content.append(_content_part(kind, part))
    if role == "tool" and not results:  # of which only the text was recorded
        return [_tool_result(_joined(content), message.get("tool_call_id"))]
    if results and not content and not calls:
        return results
    if role is None:
        return results + _left_out(message)
    if is_passed_over and not (content or calls or results or reasoning):
        return []
    if role == "assistant":
        answer = assistant_message(_joined(content) if content else None, chat_tool_calls(calls))
        return [_with_reasoning(answer, reasoning), *results]
    return [*results, {"role": role, "content": _joined(content)}]


def _left_out(message: Mapping[str, Any]) -> Messages:
    _warn_without_role(tuple(sorted(map(str, message))))
    return []


@lru_cache(maxsize=1_000)
def _warn_without_role(fields: tuple[str, ...]) -> None:
    """Log a message that is left out, the first one with these fields."""
    logger.warning("lightning.message_without_role fields=%s", list(fields))


def _tool_result(content: Any, tool_call_id: Any) -> dict[str, Any]:
    return {"role": "tool", "content": content, "tool_call_id": tool_call_id or ""}


def _with_reasoning(answer: dict[str, Any], reasoning: Any) -> dict[str, Any]:
    return {**answer, "reasoning_content": reasoning} if reasoning else answer


def _content_part(kind: Any, part: Mapping[str, Any]) -> dict[str, Any]:
    """Turn a GenAI part into OpenAI's; one of a type that OpenAI does not have stays as it is."""
    if kind == "text":
        return {"type": "text", "text": as_text(part.get("content", part.get("text")))}
    media = str(part.get("mime_type") or part.get("modality") or "")
    if kind not in ("uri", "blob") or not media.startswith("image"):
        return dict(part)
    url = part.get("uri")
    if kind == "blob":
        mime = media if "/" in media else f"{media}/png"
        url = f"data:{mime};base64,{part.get('content', part.get('data'))}"
    return {"type": "image_url", "image_url": {"url": url}}


def _joined(parts: Sequence[dict[str, Any]]) -> Any:
    """Return a text where there is only text, else the parts."""
    if all(part.get("type") == "text" for part in parts):
        return "".join(part["text"] for part in parts)
    return list(parts)


def _content(content: Any) -> Any:
    """Return a message's content: a text stays one, unless it is JSON of OpenAI's content parts."""
    parts = decoded(content)
    if isinstance(parts, (list, tuple)) and parts:
        parts = [decoded(part) for part in parts]
        if all(isinstance(part, Mapping) and part.get("type") in _CONTENT_PARTS for part in parts):
            return [dict(part) for part in parts]
    return content if content is None else as_text(content)


def chat_text(messages: Sequence[Mapping[str, Any]], finish_reasons: Sequence[str | None] = ()) -> str:
    """Return OpenAI's chat messages in the form of OpenTelemetry's GenAI conventions, as JSON.

    Args:
        messages: The messages.
        finish_reasons: For answers, why each ended.
    """
    chat = [{"role": message.get("role"), "parts": list(_parts(message))} for message in messages]
    for message, reason in zip(chat, finish_reasons, strict=False):
        message["finish_reason"] = "tool_call" if reason == "tool_calls" else reason
    return json.dumps(chat, ensure_ascii=False)


def _parts(message: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    content = message.get("content")
    if message.get("role") == "tool":
        yield {"type": "tool_call_response", "id": message.get("tool_call_id"), "response": content}
        return
    if message.get("reasoning_content"):
        yield {"type": "reasoning", "content": message["reasoning_content"]}
    if isinstance(content, str) and content:
        yield {"type": "text", "content": content}
    for part in content if isinstance(content, list) else ():
        if part.get("type") == "text":
            yield {"type": "text", "content": part.get("text")}
        elif part.get("type") == "image_url":
            image = part.get("image_url")
            yield {"type": "uri", "modality": "image", "uri": image.get("url") if isinstance(image, Mapping) else image}
        else:
            yield part
    for call in message.get("tool_calls") or ():
        function = call["function"]
        arguments = decoded(function["arguments"])
        yield {"type": "tool_call", "id": call["id"], "name": function["name"], "arguments": arguments}
