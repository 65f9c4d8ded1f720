"""Messages in the form of OpenTelemetry's GenAI conventions, from OpenAI's.

https://github.com/open-telemetry/semantic-conventions-genai: a message is a role and a list of parts.
"""

from typing import Any

from lightning_proxy.answer import Answer, AnswerChoice, mapping, objects

Message = dict[str, Any]


def of_chat_messages(messages: Any) -> list[Message]:
    """Turn the messages of OpenAI's chat API into the conventions'."""
    return [_message(message) for message in objects(messages)]


def of_choices(answer: Answer) -> list[Message]:
    """Turn answers into the conventions' output messages, one for each choice."""
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


def of_function_call(call: Any) -> list[dict[str, Any]]:
    """Turn what OpenAI's chat API had before tool calls into one, which has no id; none where there is none."""
    return [{"id": None, "type": "function", "function": call}] if isinstance(call, dict) else []


def tool_result_part(call_id: Any, result: Any) -> dict[str, Any]:
    """Make the part of a tool's result."""
    return {"type": "tool_call_response", "id": call_id, "response": result}


def _message(message: dict[str, Any]) -> Message:
    role = message.get("role")
    if role in ("tool", "function"):  # the latter is the result of a `function_call`
        role, content = "tool", message.get("content")
        parts = [tool_result_part(message.get("tool_call_id"), content if isinstance(content, str) else _flat(content))]
    else:
        parts = _reasoning(message.get("reasoning_content") or message.get("reasoning"))
        parts += content_parts(message.get("content"))
        calls = objects(message.get("tool_calls")) or of_function_call(message.get("function_call"))
        parts += [tool_call_part(call) for call in calls]
    found: Message = {"role": role, "parts": parts}
    if message.get("name"):
        found["name"] = message["name"]
    return found


def _output(choice: AnswerChoice) -> Message:
    parts = _reasoning(choice.reasoning) + content_parts(choice.content)
    parts += [tool_call_part(call) for call in choice.tool_calls]
    return {"role": "assistant", "parts": parts, "finish_reason": choice.finish_reason}


def _reasoning(text: Any) -> list[dict[str, Any]]:
    return [{"type": "reasoning", "content": text}] if isinstance(text, str) and text else []


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


def _flat(content: Any) -> str:
    return "".join(str(part.get("text", "")) for part in objects(content))
