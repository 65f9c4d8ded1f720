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
    reasoning_part,
    server_tool_part,
    text_of,
    tool_call_part,
    tool_result,
    tool_result_part,
)
from lightning_proxy.dialects.base import Dialect, Fields, append_text, item_at, read_usage
from lightning_proxy.jsons import dump, text
from lightning_proxy.request import Refused
from lightning_proxy.sse import ServerEvent

_LAST_EVENTS = frozenset({"response.completed", "response.incomplete", "response.failed"})
_CALLS = ("function_call", "custom_tool_call")


class ResponsesDialect(Dialect):
    """Items in, items out. The API gives no token ids."""

    operation = "chat"
    is_stored = True

    def read(self, answer: Fields) -> Answer:
        items = objects(answer.get("output"))
        parts = [part for item in items for part in _parts(item)]
        texts = [str(part.get("content") or "") for part in parts if part.get("type") == "text"]
        thoughts = [str(part.get("content") or "") for part in parts if part.get("type") == "reasoning"]
        calls = [_tool_call(item) for item in items if _is_call(item)]
        choice = AnswerChoice(
            content="".join(texts) if texts else None,
            reasoning="".join(thoughts) or None,
            tool_calls=calls,
            finish_reason=_finish_reason(answer, calls),
            parts=parts,
        )
        found = Answer(
            id=text_of(answer.get("id")),
            model=text_of(answer.get("model")),
            choices=[choice] if items else [],
            failure=failure_of(answer.get("error")),
        )
        read_usage(found, answer.get("usage"))
        return found

    def merge(self, answer: Fields, event: Fields) -> None:
        kind = text_of(event.get("type"))
        if kind in _LAST_EVENTS:  # they carry the whole answer
            came = answer.get("output")
            answer.clear()
            answer.update(mapping(event.get("response")))
            if came and not answer.get("output"):
                answer["output"] = came
        elif kind == "response.created":
            begun = mapping(event.get("response"))
            answer.update(id=begun.get("id"), model=begun.get("model"))
        elif kind in ("response.output_item.added", "response.output_item.done"):
            item = _item_at(answer, event)
            given = mapping(event.get("item"))
            if kind == "response.output_item.added":
                given = {name: value for name, value in given.items() if not isinstance(value, list | dict)}
            index = item["index"]
            item.clear()
            item.update(given, index=index)
        elif kind in _DELTAS:
            owner, within, part_type, name = _DELTAS[kind]
            item = _item_at(answer, event)
            item.setdefault("type", owner)
            place = event.get("summary_index" if within == "summary" else "content_index")
            part = item_at(item.setdefault(within, []), place if isinstance(place, int) else 0)
            part.setdefault("type", part_type)
            append_text(part, name, str(event.get("delta") or ""))
        elif kind in _ARGUMENTS:
            append_text(_item_at(answer, event), _ARGUMENTS[kind], str(event.get("delta") or ""))
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
        found: list[Fields] = []
        for message in map(_message, objects(given)):
            if found and message["role"] == found[-1]["role"] == "assistant":  # the items of one turn
                found[-1]["parts"] += message["parts"]
            else:
                found.append(message)
        return found

    def instructions(self, request: Fields) -> list[Fields]:
        prompt = request.get("prompt")  # a template that the backend has
        stored = [{"type": "prompt", **prompt}] if isinstance(prompt, dict) else []
        return [*stored, *content_parts(request.get("instructions"))]

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
    name = item.get("name") or str(item.get("type")).removesuffix("_call")
    given = next((item[key] for key in ("arguments", "input", "action", "operation") if key in item), None)
    arguments = given if isinstance(given, str) or given is None else text(given)
    called = {"name": name, "arguments": arguments}
    return {"id": item.get("call_id") or item.get("id"), "type": "function", "function": called}


def _finish_reason(answer: Fields, calls: list[Any]) -> str | None:
    status = answer.get("status")
    if status == "incomplete":
        reason = mapping(answer.get("incomplete_details")).get("reason")
        return "length" if reason == "max_output_tokens" else text_of(reason)
    return None if status != "completed" else "tool_calls" if calls else "stop"


def _message(item: Fields) -> Fields:
    kind = str(item.get("type") or "message")
    role = item.get("role") if kind == "message" else "tool" if kind.endswith("_output") else "assistant"
    return {"role": role, "parts": _parts(item)}


def _parts(item: Fields) -> list[Fields]:
    kind = str(item.get("type") or "message")
    if kind == "message":
        content = item.get("content")
        return content_parts(content) if isinstance(content, str) else [_part(part) for part in objects(content)]
    if kind == "reasoning":
        return [_reasoning(item)]
    if _is_call(item):
        namespace = {} if item.get("namespace") is None else {"namespace": item["namespace"]}
        return [tool_call_part(_tool_call(item)) | namespace]
    if kind.endswith("_call_output"):
        output = item.get("output")
        if isinstance(output, list):
            output = tool_result([_part(part) for part in objects(output)])
        return [tool_result_part(item.get("call_id"), output)]
    if kind == "item_reference":  # to what the backend keeps: the span of the call that it came from has it
        return [{"type": kind, "id": item.get("id")}]
    return [server_tool_part(item, str(item.get("name") or kind.removesuffix("_call")))]


def _is_call(item: Fields) -> bool:
    """Whether an item is a call of a tool that the client runs."""
    return item.get("type") in _CALLS or (str(item.get("type")).endswith("_call") and "call_id" in item)


def _reasoning(item: Fields) -> Fields:
    whole, summary = (
        "".join(str(part.get("text") or "") for part in objects(item.get(name))) for name in ("content", "summary")
    )
    return reasoning_part(
        whole or summary,
        summary=summary if whole else None,
        encrypted_content=item.get("encrypted_content"),
        id=item.get("id"),
    )


def _item_at(answer: Fields, event: Fields) -> Fields:
    index = event.get("output_index")
    return item_at(answer.setdefault("output", []), index if isinstance(index, int) else 0)


def _part(part: Fields) -> Fields:
    kind = part.get("type")
    if kind in ("input_text", "output_text"):
        return {"type": "text", "content": part.get("text")}
    if kind == "refusal":
        return {"type": "text", "content": part.get("refusal")}
    if kind == "input_image" and part.get("image_url"):
        return image_part(str(part["image_url"]))
    if kind == "input_image" and part.get("file_id"):
        return {"type": "file", "modality": "image", "file_id": part["file_id"]}
    return part


_DELTAS = {
    "response.output_text.delta": ("message", "content", "output_text", "text"),
    "response.refusal.delta": ("message", "content", "refusal", "refusal"),
    "response.reasoning_text.delta": ("reasoning", "content", "reasoning_text", "text"),
    "response.reasoning_summary_text.delta": ("reasoning", "summary", "summary_text", "text"),
}
"""Of each event that brings a piece of a text: the item, its list, the part in that, and the text's name there."""
_ARGUMENTS = {
    "response.function_call_arguments.delta": "arguments",
    "response.custom_tool_call_input.delta": "input",
}
