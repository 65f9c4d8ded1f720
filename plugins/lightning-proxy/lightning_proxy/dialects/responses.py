"""OpenAI's responses API: `/v1/responses`."""

from typing import Any

from lightning_proxy.answer import (
    Answer,
    AnswerChoice,
    content_parts,
    failure_of,
    image_part,
    mapping,
    objects,
    text_of,
    tool_call_part,
    tool_result_part,
)
from lightning_proxy.dialects.base import Dialect, Fields, append_text, read_usage
from lightning_proxy.jsons import dump
from lightning_proxy.request import Refused
from lightning_proxy.sse import ServerEvent

_LAST_EVENTS = frozenset({"response.completed", "response.incomplete", "response.failed"})
_CALLS = ("function_call", "custom_tool_call")
_RESULTS = ("function_call_output", "custom_tool_call_output")


class ResponsesDialect(Dialect):
    """Items in, items out. The API gives no token ids."""

    operation = "chat"
    is_stored = True

    def read(self, answer: Fields) -> Answer:
        items = objects(answer.get("output"))
        texts, reasoning, calls = [], [], []
        for item in items:
            if item.get("type") == "message":
                texts += [str(part.get("text") or part.get("refusal") or "") for part in objects(item.get("content"))]
            elif item.get("type") in _CALLS:
                calls.append(_tool_call(item))
            elif item.get("type") == "reasoning":
                reasoning += [str(part.get("text") or "") for part in objects(item.get("summary"))]
        found = Answer(
            id=text_of(answer.get("id")),
            model=text_of(answer.get("model")),
            choices=[
                AnswerChoice(
                    content="".join(texts) if texts else None,
                    reasoning="".join(reasoning) or None,
                    tool_calls=calls,
                    finish_reason=_finish_reason(answer, calls),
                )
            ]
            if items
            else [],
            failure=failure_of(answer.get("error")),
        )
        read_usage(found, answer.get("usage"))
        return found

    def merge(self, answer: Fields, event: Fields) -> None:
        kind = text_of(event.get("type"))
        if kind in _LAST_EVENTS:  # they carry the whole answer
            answer.clear()
            answer.update(mapping(event.get("response")))
        elif kind == "response.created":
            begun = mapping(event.get("response"))
            answer.update(id=begun.get("id"), model=begun.get("model"))
        elif kind == "response.output_text.delta":
            begun = {"type": "message", "content": [{"type": "output_text"}]}
            message = answer.setdefault("output", [begun])[0]
            append_text(message["content"][0], "text", str(event.get("delta") or ""))
        elif kind == "error":
            said = event.get("error") or {"message": event.get("message")}
            answer["error"] = said if failure_of(said) else "the backend reports an error"

    def has_answer(self, answer: Fields) -> bool:
        return isinstance(answer.get("output"), list)

    def unraised_error(self, event: ServerEvent, fields: Fields) -> str | None:
        if fields.get("type") != "error" or fields.get("error"):
            return None
        return str(fields.get("message") or fields)

    def is_end(self, event: ServerEvent, fields: Fields | None) -> bool:
        return fields is not None and text_of(fields.get("type")) in _LAST_EVENTS

    def messages(self, request: Fields) -> list[Fields]:
        given = request.get("input")
        if isinstance(given, str):
            return [{"role": "user", "parts": content_parts(given)}]
        return [message for item in objects(given) if (message := _message(item)) is not None]

    def instructions(self, request: Fields) -> list[Fields]:
        return content_parts(request.get("instructions"))

    def tools(self, request: Fields) -> list[Any]:
        return [
            {"type": "function", "function": {name: tool.get(name) for name in ("name", "description", "parameters")}}
            if tool.get("type") == "function"
            else tool
            for tool in objects(request.get("tools"))
        ]

    def error_event(self, refused: Refused) -> bytes:
        # OpenAI's clients raise an error where there is `error`; its documentation has the fields beside it.
        event = {"type": "error", "code": refused.kind, "message": refused.message, "param": None}
        event.update(self.error(refused))
        return b"event: error\ndata: " + dump(event) + b"\n\n"


def _tool_call(item: Fields) -> dict[str, Any]:
    return {
        "id": item.get("call_id") or item.get("id"),
        "type": "function",
        "function": {"name": item.get("name"), "arguments": item.get("arguments", item.get("input"))},
    }


def _finish_reason(answer: Fields, calls: list[Any]) -> str | None:
    status = answer.get("status")
    if status == "incomplete":
        reason = mapping(answer.get("incomplete_details")).get("reason")
        return "length" if reason == "max_output_tokens" else text_of(reason)
    return None if status != "completed" else "tool_calls" if calls else "stop"


def _message(item: Fields) -> Fields | None:
    kind = item.get("type", "message")
    if kind == "message":
        content = item.get("content")
        plain = content_parts(content) if isinstance(content, str) else [_part(part) for part in objects(content)]
        return {"role": item.get("role"), "parts": plain}
    if kind in _CALLS:
        return {"role": "assistant", "parts": [tool_call_part(_tool_call(item))]}
    if kind in _RESULTS:
        return {"role": "tool", "parts": [tool_result_part(item.get("call_id"), item.get("output"))]}
    return None


def _part(part: Fields) -> Fields:
    kind = part.get("type")
    if kind in ("input_text", "output_text"):
        return {"type": "text", "content": part.get("text")}
    if kind == "input_image" and part.get("image_url"):
        return image_part(str(part["image_url"]))
    return part
