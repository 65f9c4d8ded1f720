"""What a model was asked and answered, whatever the API, and both as messages of OpenTelemetry's GenAI conventions.

https://github.com/open-telemetry/semantic-conventions-genai: a message is a role and a list of parts.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class AnswerChoice:
    """One answer of a call."""

    content: Any = None
    """A text, or OpenAI's content parts; None where there is none."""
    reasoning: str | None = None
    tool_calls: list[dict[str, Any]] = field(default_factory=list)
    """As OpenAI's chat API has them; a custom tool's may be in a function's form, with its input as the arguments."""
    finish_reason: str | None = None
    token_ids: Sequence[int] | None = None
    """The engine's; None where it gave none."""
    logprobs: Sequence[float] | None = None
    """Of each of `token_ids`; None where it gave none."""
    parts: list[dict[str, Any]] | None = None
    """All of it in its order, as parts of the conventions; None where the API gives no more than stands above."""


@dataclass(slots=True)
class Answer:
    """A complete answer, or as much of a stream as came."""

    id: str | None = None
    model: str | None = None
    choices: list[AnswerChoice] = field(default_factory=list)
    prompt_token_ids: Sequence[int] | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    """Of the prompt, those that the backend had in its prefix cache."""
    written_tokens: int | None = None
    """Of the prompt, those that the provider wrote to its cache."""
    written_for_an_hour: int | None = None
    """Of these, those that stay there for an hour; the others are for a shorter time."""
    reasoning_tokens: int | None = None
    """Of the answer, those that the model thought."""
    failure: str | None = None
    """What the answer itself says went wrong."""


def choice_of(parts: list[dict[str, Any]], tool_calls: list[dict[str, Any]], reason: str | None) -> AnswerChoice:
    """Return the answer that these parts make."""
    texts = [str(part.get("content") or "") for part in parts if part.get("type") == "text"]
    thoughts = [str(part.get("content") or "") for part in parts if part.get("type") == "reasoning"]
    return AnswerChoice(
        content="".join(texts) if texts else None,
        reasoning="".join(thoughts) or None,
        tool_calls=tool_calls,
        finish_reason=reason,
        parts=parts,
    )


def integer(value: Any) -> int | None:
    """Return a count that a backend told; None for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def integers(value: Any) -> list[int] | None:
    """Return token ids; None for anything else. Looks at both ends only: a prompt may have a hundred thousand."""
    if not isinstance(value, list) or (value and (type(value[0]) is not int or type(value[-1]) is not int)):
        return None
    return value


def mapping(value: Any) -> dict[str, Any]:
    """Return an object; an empty one for anything else."""
    return value if isinstance(value, dict) else {}


def objects(value: Any) -> list[dict[str, Any]]:
    """Return the objects of a list; none for anything else."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def text_of(value: Any) -> str | None:
    """Return a text that is not empty; None for anything else."""
    return value if isinstance(value, str) and value else None


def failure_of(error: Any) -> str | None:
    """Return what an answer's `error` says went wrong; None for one that is empty: some give all fields always."""
    if isinstance(error, dict) and not any(error.values()):
        return None
    return str(mapping(error).get("message") or error) if error else None


Message = dict[str, Any]


def input_messages(messages: Any) -> list[Message]:
    """Turn the messages of OpenAI's chat API into those of the conventions."""
    return [_message(message) for message in objects(messages)]


def output_messages(answer: Answer) -> list[Message]:
    """Return an answer as output messages of the conventions, one for each choice."""
    return [_output(choice) for choice in answer.choices]


def content_parts(content: Any) -> list[dict[str, Any]]:
    """Turn a message's content into parts: a text, or OpenAI's list of parts."""
    if content is None:
        return []
    if isinstance(content, str):
        return [{"type": "text", "content": content}]
    return [_part(part) for part in objects(content)]


def tool_call_part(call: dict[str, Any]) -> dict[str, Any]:
    """Turn a tool call of OpenAI's chat API into a part. The arguments of a custom tool are its input, a text."""
    called = mapping(call.get("function")) or mapping(call.get("custom"))
    return {
        "type": "tool_call",
        "id": call.get("id"),
        "name": called.get("name"),
        "arguments": called.get("arguments", called.get("input")),
    }


def function_definition(tool: dict[str, Any], parameters: Any) -> dict[str, Any]:
    """Return a tool that is a function in the form of OpenAI's chat API."""
    function = {"name": tool.get("name"), "description": tool.get("description"), "parameters": parameters}
    return {"type": "function", "function": function}


def legacy_tool_calls(call: Any) -> list[dict[str, Any]]:
    """Turn a `function_call`, which OpenAI's chat API had before tool calls, into a tool call without an id."""
    return [{"id": None, "type": "function", "function": call}] if isinstance(call, dict) else []


def tool_result_part(call_id: Any, result: Any, *, is_error: bool = False) -> dict[str, Any]:
    """Make the part of a tool's result."""
    return {"type": "tool_call_response", "id": call_id, "response": result, **({"is_error": True} if is_error else {})}


def tool_result(parts: list[dict[str, Any]]) -> Any:
    """Return a tool's result: its text, or its parts where it has others, such as images."""
    if all(part.get("type") == "text" for part in parts):
        return "".join(str(part.get("content") or "") for part in parts)
    return parts


def reasoning_part(content: Any, **more: Any) -> dict[str, Any]:
    """Make the part of what a model thought. What else is known of it stands beside, such as its signature."""
    return {"type": "reasoning", "content": content or "", **{name: value for name, value in more.items() if value}}


def server_tool_part(item: dict[str, Any], name: str, *, is_result: bool = False) -> dict[str, Any]:
    """Make the part of a tool that the provider itself runs, from what its API says of the call or the result."""
    kind = "server_tool_call_response" if is_result else "server_tool_call"
    known = {key: value for key, value in item.items() if key != "index"}  # its place in a stream
    part: dict[str, Any] = {"type": kind, "id": known.get("tool_use_id") if is_result else known.get("id")}
    return {**part, **({} if is_result else {"name": name}), kind: known}


def _message(message: dict[str, Any]) -> Message:
    role = message.get("role")
    if role in ("tool", "function"):  # the latter is the result of a `function_call`
        role, content = "tool", message.get("content")
        result = content if isinstance(content, str) else tool_result(content_parts(content))
        parts = [tool_result_part(message.get("tool_call_id"), result)]
    else:
        parts = _reasoning(message.get("reasoning_content") or message.get("reasoning"))
        parts += content_parts(message.get("content"))
        calls = objects(message.get("tool_calls")) or legacy_tool_calls(message.get("function_call"))
        parts += [tool_call_part(call) for call in calls]
    found: Message = {"role": role, "parts": parts}
    if message.get("name"):
        found["name"] = message["name"]
    return found


def _output(choice: AnswerChoice) -> Message:
    if choice.parts is not None:
        return {"role": "assistant", "parts": choice.parts, "finish_reason": choice.finish_reason}
    parts = _reasoning(choice.reasoning) + content_parts(choice.content)
    parts += [tool_call_part(call) for call in choice.tool_calls]
    return {"role": "assistant", "parts": parts, "finish_reason": choice.finish_reason}


def _reasoning(text: Any) -> list[dict[str, Any]]:
    return [reasoning_part(text)] if isinstance(text, str) and text else []


def _part(part: dict[str, Any]) -> dict[str, Any]:
    kind = part.get("type")
    if kind == "text":
        return {"type": "text", "content": part.get("text")}
    if kind == "image_url":
        image = part.get("image_url")
        url = image if isinstance(image, str) else mapping(image).get("url")
        return image_part(str(url))
    return part


def image_part(url: str) -> dict[str, Any]:
    """Make the part of an image: its bytes where the URL holds them, else the URL."""
    head, comma, data = url.partition(",")
    if comma and head.startswith("data:") and head.endswith(";base64"):
        mime = head.removeprefix("data:").removesuffix(";base64")
        return {"type": "blob", "modality": "image", "mime_type": mime, "content": data}
    return {"type": "uri", "modality": "image", "uri": url}
