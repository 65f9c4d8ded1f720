"""What was said in a model call, by whichever of the known ways a span tells it."""

import json
import logging
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

from lightning_core.adapter import genai
from lightning_core.adapter.attributes import decoded, entries, nested, unflatten
from lightning_core.adapter.tokens import raw_fields
from lightning_core.types import Span

logger = logging.getLogger(__name__)

_CONTENT_PARTS = frozenset({"text", "image_url", "input_audio", "file", "refusal"})
"""The types of a content part in OpenAI's API."""


def chat_messages(given: Any, *, role: str | None = None) -> list[dict[str, Any]]:
    """Turn recorded messages into OpenAI's.

    A message may be OpenAI's own, AgentOps' flat one, or one with GenAI `parts`. An entry that tells no role, not
    even by what it holds, is logged and left out.

    Args:
        given: A list of messages, a dict of them by position, one message, or JSON of any of these.
        role: The role of a message that tells none.
    """
    given = decoded(given)
    if isinstance(given, Mapping) and not any(str(name).isdigit() for name in given):
        given = [given]
    messages: list[dict[str, Any]] = []
    for entry in entries(given):
        message = decoded(entry)
        if not isinstance(message, Mapping):
            continue
        if isinstance(decoded(message.get("parts")), (list, tuple)):
            messages += _read_parts(message, role)
        else:
            messages += _read_fields(message, role)
    return messages


def chat_tools(given: Any) -> list[dict[str, Any]]:
    """Turn recorded tool definitions into OpenAI's; an entry without a name is left out."""
    tools = []
    for entry in entries(decoded(given)):
        tool = decoded(entry)
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
            calls.append(
                {
                    "id": call.get("id") or f"call_{position}",
                    "type": "function",
                    "function": {"name": source["name"], "arguments": _json_text(source.get("arguments"))},
                }
            )
    return calls


def assistant_message(content: Any, tool_calls: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Make the message of an answer. Its content is None only beside tool calls."""
    content = _content(content)
    if tool_calls:
        return {"role": "assistant", "content": content or None, "tool_calls": list(tool_calls)}
    return {"role": "assistant", "content": "" if content is None else content}


def _read_fields(message: Mapping[str, Any], default_role: str | None) -> list[dict[str, Any]]:
    calls = chat_tool_calls(message.get("tool_calls"))
    legacy = decoded(message.get("function_call"))
    if not calls and isinstance(legacy, Mapping):
        calls = chat_tool_calls([legacy])
    role = message.get("role") or default_role or _infer_role(message, calls)
    content = message.get("content")
    if role is None:
        _warn_without_role(message)
        return []
    if role == "assistant":
        answer = assistant_message(content, calls)
        if message.get("reasoning_content"):
            answer["reasoning_content"] = message["reasoning_content"]
        return [answer]
    if role == "tool":
        answered = message.get("tool_call_id") or message.get("id") or ""
        return [{"role": "tool", "content": _text(content), "tool_call_id": answered}]
    plain = {"role": role, "content": "" if content is None else _content(content)}
    if message.get("name"):
        plain["name"] = message["name"]
    return [plain]


_attempt_id: ContextVar[str | None] = ContextVar("attempt_id", default=None)
"""Whose spans are read."""
_warned = deque[str | None]([], maxlen=1_000)


def _warn_without_role(message: Mapping[str, Any]) -> None:
    """Log a message that is left out, the first one of an attempt."""
    attempt_id = _attempt_id.get()
    if attempt_id is None or attempt_id not in _warned:
        _warned.append(attempt_id)
        fields = sorted(map(str, message))
        logger.warning("lightning.message_without_role attempt_id=%s fields=%s", attempt_id, fields)


def _infer_role(message: Mapping[str, Any], calls: Sequence[Any]) -> str | None:
    if calls:
        return "assistant"
    return "tool" if message.get("tool_call_id") else None


_WITHOUT_MESSAGE = frozenset({"server_tool_call", "server_tool_call_response", "item_reference", "prompt"})
"""Parts of the conventions that OpenAI's chat API has nothing for."""


def _read_parts(message: Mapping[str, Any], default_role: str | None) -> list[dict[str, Any]]:
    content: list[dict[str, Any]] = []
    calls: list[Mapping[str, Any]] = []
    results: list[dict[str, Any]] = []
    reasoning: list[str] = []
    is_passed_over = False
    for entry in entries(decoded(message["parts"])):
        part = decoded(entry)
        if not isinstance(part, Mapping):
            continue
        kind = part.get("type")
        if kind in ("tool_call", "function_call"):
            calls.append(part)
        elif kind == "tool_call_response":
            result = part.get("response", part.get("result"))
            results.append({"role": "tool", "content": _text(result), "tool_call_id": part.get("id") or ""})
        elif kind == "reasoning":
            reasoning.append(_text(part.get("content")))
        elif kind in _WITHOUT_MESSAGE:
            is_passed_over = True
        else:
            content.append(_content_part(part))
    role = message.get("role") or default_role
    if role == "tool" and not results:
        # A tool message of which only the text was recorded.
        return [{"role": "tool", "content": _joined(content), "tool_call_id": message.get("tool_call_id") or ""}]
    if results and not content and not calls:
        return results
    if role is None:
        _warn_without_role(message)
        return results
    if is_passed_over and not (content or calls or results or any(reasoning)):
        return []
    if role == "assistant":
        answer = assistant_message(_joined(content) if content else None, chat_tool_calls(calls))
        if any(reasoning):
            answer["reasoning_content"] = "".join(reasoning)
        return [answer, *results]
    return [*results, {"role": role, "content": _joined(content)}]


def _content_part(part: Mapping[str, Any]) -> dict[str, Any]:
    """Turn a GenAI part into OpenAI's; one of a type that OpenAI does not have stays as it is."""
    kind = part.get("type")
    if kind == "text":
        return {"type": "text", "text": _text(part.get("content", part.get("text")))}
    media = str(part.get("mime_type") or part.get("modality") or "")
    if kind == "uri" and media.startswith("image"):
        return {"type": "image_url", "image_url": {"url": part.get("uri")}}
    if kind == "blob" and media.startswith("image"):
        mime = media if "/" in media else f"{media}/png"
        return {
            "type": "image_url",
            "image_url": {"url": f"data:{mime};base64,{part.get('content', part.get('data'))}"},
        }
    return dict(part)


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
    return content if content is None or isinstance(content, str) else _text(content)


def _text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _json_text(arguments: Any) -> str:
    return "{}" if arguments is None else _text(arguments)


Messages = list[dict[str, Any]]


def request_messages(span: Span) -> Messages:
    """Read the messages that the model was given; none when the span has none."""
    _attempt_id.set(span.attempt_id)
    attributes = _with_details(span)
    return (
        _genai_request(attributes)
        or chat_messages(nested(attributes, genai.PROMPT))
        or chat_messages(nested(attributes, genai.INPUT_CHAT))
        or chat_messages(_openinference_messages(nested(attributes, genai.OPENINFERENCE_INPUT)))
        or _event_request(span)
        or (chat_messages(raw_fields(attributes).get("messages")) if span.name == genai.LITELLM_RAW_SPAN else [])
    )


def answer_messages(span: Span) -> Messages:
    """Read the assistant's message of each choice; none when the span has none."""
    _attempt_id.set(span.attempt_id)
    attributes = _with_details(span)
    return (
        chat_messages(attributes.get(genai.OUTPUT_MESSAGES), role="assistant")
        or chat_messages(nested(attributes, genai.COMPLETION), role="assistant")
        or _read_choices(entries(nested(attributes, genai.OUTPUT_CHOICES)))
        or chat_messages(_openinference_messages(nested(attributes, genai.OPENINFERENCE_OUTPUT)), role="assistant")
        or _event_answers(span)
        or (_read_choices(raw_choices(attributes)) if span.name == genai.LITELLM_RAW_SPAN else [])
    )


def offered_tools(span: Span) -> list[dict[str, Any]]:
    """Read the tools that the model was offered; none when the span has none."""
    attributes = _with_details(span)
    openinference = _unwrapped(nested(attributes, genai.OPENINFERENCE_TOOLS), "tool")
    return (
        chat_tools(attributes.get(genai.TOOL_DEFINITIONS))
        or chat_tools(nested(attributes, *genai.TOOL_PREFIXES))
        or chat_tools(nested(attributes, genai.INPUT_TOOLS))
        or chat_tools([tool.get("json_schema") for tool in openinference])
        or (chat_tools(raw_fields(attributes).get("tools")) if span.name == genai.LITELLM_RAW_SPAN else [])
    )


def raw_choices(attributes: Mapping[str, Any]) -> list[Any]:
    """Return the choices of LiteLLM's raw span, as the provider gave them."""
    return entries(decoded(raw_fields(attributes).get("choices")))


def _with_details(span: Span) -> Mapping[str, Any]:
    """Return the span's attributes, and those of the events that carry what the span could."""
    attributes: Mapping[str, Any] = span.attributes
    for event in span.events:
        if event.name == genai.DETAILS_EVENT or event.name in genai.CONTENT_EVENTS:
            attributes = {**event.attributes, **attributes}
    return attributes


def _genai_request(attributes: Mapping[str, Any]) -> Messages:
    messages = chat_messages(attributes.get(genai.INPUT_MESSAGES))
    instructions = decoded(attributes.get(genai.SYSTEM_INSTRUCTIONS))
    if messages and isinstance(instructions, (list, tuple)):
        return chat_messages([{"role": "system", "parts": instructions}]) + messages
    return messages


def _openinference_messages(given: Any) -> Messages:
    """Turn OpenInference's messages into OpenAI's; https://github.com/Arize-ai/openinference, in spec/."""
    messages = []
    for message in _unwrapped(given, "message"):
        parts: list[dict[str, Any]] = []
        for part in _unwrapped(message.get("contents"), "message_content"):
            if part.get("type") == "image":
                url = next((image.get("url") for image in _unwrapped([part.get("image")], "image")), None)
                parts.append({"type": "image_url", "image_url": {"url": url}})
            else:
                parts.append({"type": "text", "text": _text(part.get("text"))})
        calls = list(_unwrapped(message.get("tool_calls"), "tool_call"))
        messages.append({**message, "tool_calls": calls, **({"content": parts} if parts else {})})
    return messages


def _unwrapped(given: Any, name: str) -> Iterator[Mapping[str, Any]]:
    """Yield what each entry of a list has under the name that OpenInference repeats in each of them."""
    for entry in entries(given):
        if isinstance(entry, Mapping) and isinstance(entry.get(name), Mapping):
            yield entry[name]


def _event_request(span: Span) -> Messages:
    return [
        message
        for event in span.events
        if event.name in genai.MESSAGE_EVENTS
        for message in chat_messages([event.attributes], role=genai.MESSAGE_EVENTS[event.name])
    ]


def _event_answers(span: Span) -> Messages:
    choices = [event.attributes for event in span.events if event.name == genai.CHOICE_EVENT]
    return _read_choices([unflatten(choice.items()) for choice in choices])


def _read_choices(choices: list[Any]) -> Messages:
    """Read choices of OpenAI's API: a message, or its fields beside the finish reason, or a plain text."""
    answers: Messages = []
    for choice in choices:
        if not isinstance(choice, Mapping):
            continue
        message = decoded(choice.get("message"))
        fields = message if isinstance(message, Mapping) else choice
        content = message if isinstance(message, str) else fields.get("content", fields.get("text"))
        answers.append(assistant_message(content, chat_tool_calls(fields.get("tool_calls"))))
    return answers
