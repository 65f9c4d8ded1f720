"""OpenAI's responses API, `/v1/responses`: how it is read, as chat, and what may be named later."""

import re
import secrets
import time
from collections import OrderedDict
from typing import Any, ClassVar

from lightning_core.secrets import hide_keys_in
from lightning_proxy.answer import (
    Answer,
    choice_of,
    content_parts,
    failure_of,
    function_definition,
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
from lightning_proxy.apis.base import Fields, append_text, item_at, read_usage
from lightning_proxy.apis.conversion import (
    NOT_CONVERTIBLE,
    SAME_IN_CHAT,
    Block,
    ChatStream,
    ConvertibleDialect,
    Step,
    Turn,
    content_of,
    function_tool,
    messages_of,
    named_objects,
    object_at,
    require_known,
    seal,
    text_at,
    unconvertible,
    unseal,
)
from lightning_proxy.jsons import dump, text
from lightning_proxy.request import Refused, invalid
from lightning_proxy.sse import ServerEvent

_MESSAGE = frozenset({"type", "id", "role", "content", "status", "phase"})
_CALL = frozenset({"type", "id", "call_id", "name", "namespace", "arguments", "status"})
_RESULT = frozenset({"type", "id", "call_id", "output", "status"})
_REASONING = frozenset({"type", "id", "summary", "content", "encrypted_content", "status"})
_TOOL = frozenset({"type", "name", "description", "parameters", "strict"})
_NAMESPACE = frozenset({"type", "name", "description", "tools"})
_ROLES = {"user": "user", "system": "system", "developer": "system", "assistant": "assistant"}
"""A developer's message is the system's: chat templates have no other word for it, and leave out what they do not
know."""

_ID = re.compile(r"(?:rs|msg|fc)_([0-9a-f]{24})[0-9a-f]{4}")
"""Of an item that was converted; what it has in common with the others of its answer."""

_ENCRYPTED = "reasoning.encrypted_content"

_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}

_LAST_EVENTS = frozenset({"response.completed", "response.incomplete", "response.failed"})
_CALLS = ("function_call", "custom_tool_call")


class ResponsesDialect(ConvertibleDialect):
    """Items in, items out. The API itself gives no token ids."""

    path = "/responses"
    operation = "chat"
    is_stored = True
    names: ClassVar = {"max_tokens": ("max_output_tokens",), "reasoning_effort": ("reasoning.effort",)}
    same: ClassVar = {**SAME_IN_CHAT, "max_output_tokens": "max_tokens", "stop": "stop"}
    taken = frozenset(
        {
            *("input", "instructions", "tools", "tool_choice", "parallel_tool_calls", "text", "reasoning", "include"),
            "truncation",
            # Of whose it is, how fast it is, and where it is kept; and of tools that the provider runs.
            *("metadata", "user", "safety_identifier", "service_tier", "client_metadata", "store", "stream_options"),
            *("prompt_cache_key", "prompt_cache_retention", "prompt_cache_options", "max_tool_calls"),
        }
    )
    # What is said elsewhere, or asks for another kind of answer.
    refused = frozenset({"prompt", "conversation", "background", "previous_response_id", "top_logprobs"})
    hosted_tools = ("web_search", "file_search", "code_interpreter", "image_generation", "mcp", "tool_search")

    def read(self, answer: Fields) -> Answer:
        items = objects(answer.get("output"))
        parts = [part for item in items for part in _parts(item)]
        calls = [_tool_call(item) for item in items if _is_call(item)]
        choice = choice_of(parts, calls, _finish_reason(answer, calls))
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

    def has_answer(self, answer: Fields) -> bool:
        return isinstance(answer.get("output"), list)

    def is_end(self, event: ServerEvent, fields: Fields | None) -> bool:
        return fields is not None and text_of(fields.get("type")) in _LAST_EVENTS

    def messages(self, request: Fields) -> list[Fields]:
        given = request.get("input")
        if isinstance(given, str):
            return [{"role": "user", "parts": content_parts(given)}]
        messages: list[Fields] = []
        for message in map(_message, objects(given)):
            if messages and message["role"] == messages[-1]["role"] == "assistant":  # the items of one turn
                messages[-1]["parts"] += message["parts"]
            else:
                messages.append(message)
        return messages

    def instructions(self, request: Fields) -> list[Fields]:
        prompt = request.get("prompt")  # a template that the backend has
        stored = [{"type": "prompt", **prompt}] if isinstance(prompt, dict) else []
        return [*stored, *content_parts(request.get("instructions"))]

    def tools(self, request: Fields) -> list[Any]:
        return [
            function_definition(tool, tool.get("parameters"))
            if tool.get("type") == "function"
            else hide_keys_in(tool, "headers")
            for tool in objects(request.get("tools"))
        ]

    def error_event(self, refused: Refused) -> bytes:
        # OpenAI's clients raise an error where there is `error`; its documentation has the fields beside it.
        event = {"type": "error", "code": refused.kind, "message": refused.message, "param": None}
        event.update(self.error(refused))
        return b"event: error\ndata: " + dump(event) + b"\n\n"

    def to_chat(self, fields: Fields) -> Fields:
        chat = self.same_in_chat(fields)
        if fields.get("truncation") not in (None, "disabled"):
            raise unconvertible("truncation", f"is {fields['truncation']!r:.100}; say 'disabled'")
        include = fields.get("include") or []
        if not isinstance(include, list):
            raise invalid(f"include is {include!r:.100}; it is a list of texts")
        if "message.output_text.logprobs" in include:
            raise unconvertible("include", "asks for log-probabilities; leave them out, they are recorded anyhow")
        instructions = fields.get("instructions")
        if not isinstance(instructions, str | None):
            raise unconvertible("instructions", "is not a text; say it in input")
        system = [{"role": "system", "content": instructions}] if instructions else []
        chat["messages"] = [*system, *_chat_messages(fields.get("input"))]
        if not chat["messages"]:
            raise invalid("input is empty; say what the model is to answer")
        if tools := _chat_tools(fields.get("tools")):
            chat["tools"] = tools
            if fields.get("parallel_tool_calls") is not None:
                chat["parallel_tool_calls"] = fields["parallel_tool_calls"]
        if fields.get("tool_choice") is not None:
            chat["tool_choice"] = _tool_choice(fields["tool_choice"])
        reasoning = object_at(fields, "reasoning")
        require_known(reasoning, {"effort", "summary", "generate_summary"}, "reasoning")
        if reasoning.get("effort") is not None:
            chat["reasoning_effort"] = reasoning["effort"]
        chat.update(_text(object_at(fields, "text")))
        return chat

    def stream(self, request: Fields) -> ChatStream:
        return _ResponsesStream(request)


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
_ARGUMENTS = {"response.function_call_arguments.delta": "arguments", "response.custom_tool_call_input.delta": "input"}


# From items to chat


def _chat_messages(given: Any) -> list[Fields]:
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    messages: list[Fields | Turn] = []
    last: Fields = {}
    for name, item in named_objects(given, "input"):
        kind, turn = item.get("type", "message"), messages[-1] if messages else None
        if kind == "message" and item.get("role") != "assistant":
            messages.append(_chat_message(item, name))
        elif kind == "function_call_output":
            messages.append(_chat_result(item, name))
        elif kind in ("message", "function_call", "reasoning"):
            if not isinstance(turn, Turn) or not _goes_on(turn, last, item):
                turn = Turn()  # an answer of a chat is one message
                messages.append(turn)
            _add_to_turn(turn, kind, item, name)
        elif kind == "item_reference":
            raise unconvertible(name, "names an item that is not stored here; say store=False, and send items whole")
        else:
            raise unconvertible(f"{name}.type", f"is {kind!r:.100}; send messages, function calls and their results")
        last = item
    return messages_of(messages)


def _goes_on(turn: Turn, last: Fields, item: Fields) -> bool:
    """Whether an item belongs to the answer that the item before it is of, or to the next one."""
    ids = [_ID.fullmatch(str(each.get("id"))) for each in (last, item)]
    if ids[0] is not None and ids[1] is not None:
        return ids[0][1] == ids[1][1]
    # Others may have no ids. One answer never has two texts in a row, and before calls are answered there is no next.
    return bool(turn.calls) or {each.get("type", "message") for each in (last, item)} != {"message"}


def _add_to_turn(turn: Turn, kind: str, item: Fields, name: str) -> None:
    if kind == "message":
        turn.texts.append(_answered_text(item, name))
    elif kind == "function_call":
        require_known(item, _CALL, name)
        arguments = text_at(item, "arguments", name)
        turn.add_call(text_at(item, "call_id", name), _name_in_chat(item, name), arguments)
    else:
        turn.reasoning.append(_chat_reasoning(item, name))


def _chat_message(item: Fields, name: str) -> Fields:
    require_known(item, _MESSAGE, name)
    role = _ROLES.get(str(item.get("role")))
    if role is None:
        roles = ", ".join(_ROLES)
        raise invalid(f"{name}.role is {item.get('role')!r:.100}; it is one of {roles}")
    return {"role": role, "content": _content(item.get("content"), f"{name}.content")}


def _content(content: Any, name: str) -> str | list[Fields]:
    if isinstance(content, str):
        return content
    return content_of([_chat_part(part, where) for where, part in named_objects(content, name)])


def _chat_part(part: Fields, name: str) -> Fields:
    kind = part.get("type")
    if kind in ("input_text", "output_text", "text"):
        require_known(part, {"type", "text", "annotations", "logprobs"}, name)
        return {"type": "text", "text": text_at(part, "text", name)}
    if kind == "refusal":
        return {"type": "text", "text": text_at(part, "refusal", name)}
    if kind == "input_image" and part.get("image_url") is not None:
        require_known(part, {"type", "image_url", "detail"}, name)
        image = {"url": text_at(part, "image_url", name)}
        if part.get("detail") not in (None, "auto"):
            image["detail"] = part["detail"]
        return {"type": "image_url", "image_url": image}
    raise unconvertible(f"{name}.type", f"is {kind!r:.100}; send text, or an image by its image_url")


def _answered_text(item: Fields, name: str) -> str:
    require_known(item, _MESSAGE, name)
    parts = _content(item.get("content"), f"{name}.content")
    if isinstance(parts, str):
        return parts
    if any(part["type"] != "text" for part in parts):
        raise unconvertible(f"{name}.content", "has an image; an answer has text")
    return "".join(str(part["text"]) for part in parts)


def _chat_reasoning(item: Fields, name: str) -> str:
    require_known(item, _REASONING, name)
    if parts := named_objects(item.get("content"), f"{name}.content"):
        return "".join(text_at(part, "text", where) for where, part in parts)
    kept = item.get("encrypted_content")
    reasoning = "" if kept is None else unseal(kept)
    if reasoning is None:
        raise unconvertible(f"{name}.encrypted_content", "is of another model; leave this item out")
    return reasoning


def _chat_result(item: Fields, name: str) -> Fields:
    require_known(item, _RESULT, name)
    content = _content(item.get("output"), f"{name}.output")
    return {"role": "tool", "tool_call_id": text_at(item, "call_id", name), "content": content}


def _chat_tools(given: Any) -> list[Fields]:
    tools: list[Fields] = []
    for name, tool in named_objects(given, "tools"):
        tools += _namespace(tool, name) if tool.get("type") == "namespace" else [_chat_tool(tool, name)]
    names = [tool["function"]["name"] for tool in tools]
    if twice := [name for name in _namespaced(given) if names.count(name) > 1]:
        raise unconvertible("tools", f"has two functions that chat would call {twice[0]!r:.100}; rename one of them")
    return tools


def _namespace(group: Fields, name: str) -> list[Fields]:
    """Return the functions of a group, each under a name of its own; the first one tells what they have in common."""
    require_known(group, _NAMESPACE, name)
    tools = []
    for where, tool in named_objects(group.get("tools"), f"{name}.tools"):
        tools.append(_chat_tool(tool, where))
        tools[-1]["function"]["name"] = _name_in_chat({**tool, "namespace": text_at(group, "name", name)}, name)
    if tools and group.get("description"):
        texts = [f"{group['name']}: {text_at(group, 'description', name)}", tools[0]["function"].get("description")]
        tools[0]["function"]["description"] = "\n\n".join(filter(None, texts))
    return tools


def _name_in_chat(called: Fields, name: str) -> str:
    """Return what chat calls a function, of which the responses API names the group beside it."""
    function = text_at(called, "name", name)
    return function if called.get("namespace") is None else f"{text_at(called, 'namespace', name)}__{function}"


def _namespaced(tools: Any) -> dict[str, Fields]:
    """Return what the responses API calls the functions of groups, by what chat calls them."""
    return {
        f"{group.get('name')}__{tool.get('name')}": {"name": tool.get("name"), "namespace": group.get("name")}
        for group in objects(tools)
        if group.get("type") == "namespace"
        for tool in objects(group.get("tools"))
    }


def _chat_tool(tool: Fields, name: str) -> Fields:
    if tool.get("type") != "function":
        raise unconvertible(f"{name}.type", f"is {tool.get('type')!r:.100}, not 'function'; turn this tool off")
    require_known(tool, _TOOL, name)
    return function_tool(tool, name)


def _tool_choice(choice: Any) -> Any:
    if isinstance(choice, str):
        return choice
    wanted = mapping(choice)
    if wanted.get("type") != "function":
        raise unconvertible("tool_choice.type", f"is {wanted.get('type')!r:.100}; name a function, or say 'auto'")
    return {"type": "function", "function": {"name": _name_in_chat(wanted, "tool_choice")}}


def _text(config: Fields) -> Fields:
    require_known(config, {"format", "verbosity"}, "text")
    is_default = config.get("verbosity") in (None, "medium")
    fields: Fields = {} if is_default else {"verbosity": config["verbosity"]}
    wanted = dict(object_at(config, "format", "text"))
    kind = wanted.pop("type", "text")
    if kind == "json_schema":
        require_known(wanted, {"name", "schema", "strict", "description"}, "text.format")
        fields["response_format"] = {"type": kind, "json_schema": wanted}
    elif kind == "json_object":
        fields["response_format"] = {"type": kind}
    elif kind != "text":
        raise unconvertible("text.format.type", f"is {kind!r:.100}; it is text, json_schema or json_object")
    return fields


# From chat to items


class _ResponsesStream(ChatStream):
    needs_a_part = True

    def __init__(self, request: Fields) -> None:
        self._suffix = secrets.token_hex(12)
        super().__init__(request, f"resp_{self._suffix}")
        self._namespaced = _namespaced(request.get("tools"))
        self._created_at = int(time.time())
        self._number = 0

    def begin(self) -> list[Fields]:
        begun = {**self._head(), "status": "in_progress", "incomplete_details": None, "output": [], "usage": None}
        return [self._event("response.created", response=begun), self._event("response.in_progress", response=begun)]

    def events(self, step: Step) -> list[Fields]:
        block = step.block
        item: Fields = {"item_id": self._id_of(block), "output_index": block.index}
        part = item if block.kind == "call" else {**item, "content_index": 0}
        kind, text_name = _EVENTS[block.kind]
        logprobs: Fields = {"logprobs": []} if block.kind == "text" else {}
        if step.what == "piece":
            return [self._event(f"response.{kind}.delta", **part, delta=step.text, **logprobs)]
        if step.what == "begin":
            begun = self._item(block, "in_progress")
            events = [self._event("response.output_item.added", output_index=block.index, item=begun)]
            if block.kind != "call":
                events.append(self._event("response.content_part.added", **part, part=_content_part(block)))
            return events
        named = {"name": self._function(block)["name"]} if block.kind == "call" else {}
        events = [self._event(f"response.{kind}.done", **part, **{text_name: block.text}, **named, **logprobs)]
        if block.kind != "call":
            events.append(self._event("response.content_part.done", **part, part=_content_part(block)))
        events.append(self._event("response.output_item.done", output_index=block.index, item=self._item(block)))
        return events

    def _event(self, kind: str, **fields: Any) -> Fields:
        number, self._number = self._number, self._number + 1
        return {"type": kind, "sequence_number": number, **fields}

    def end(self) -> list[Fields]:
        response = self.answer()
        return [self._event(f"response.{response['status']}", response=response)]

    def answer(self) -> Fields:
        read = self.read
        reason = read.finish_reason or "stop"
        if reason not in ("stop", "tool_calls", *_INCOMPLETE):
            raise Refused(502, NOT_CONVERTIBLE, f"the engine ended its answer with {reason!r}")
        incomplete = _INCOMPLETE.get(reason)
        usage = {
            "input_tokens": read.input_tokens,
            "input_tokens_details": {"cached_tokens": read.cached_tokens, "cache_write_tokens": 0},
            "output_tokens": read.output_tokens,
            "output_tokens_details": {"reasoning_tokens": read.reasoning_tokens},
            "total_tokens": read.input_tokens + read.output_tokens,
        }
        # Where the engine was cut off, its last item is not complete.
        last = "completed" if incomplete is None else "incomplete"
        items = [self._item(block, last if block is read.blocks[-1] else "completed") for block in read.blocks]
        return {
            **self._head(),
            "status": "completed" if incomplete is None else "incomplete",
            "incomplete_details": None if incomplete is None else {"reason": incomplete},
            "output": items,
            "usage": usage,
        }

    def _item(self, block: Block, status: str = "completed") -> Fields:
        head: Fields = {"id": self._id_of(block), "status": status}
        is_begun = status == "in_progress"
        if block.kind == "text":
            parts = [] if is_begun else [_content_part(block)]
            return {**head, "type": "message", "role": "assistant", "content": parts}
        if block.kind == "call":
            call = {"call_id": block.call_id, **self._function(block), "arguments": block.text}
            return {**head, "type": "function_call", **call}
        reasoning: Fields = {**head, "type": "reasoning", "summary": []}
        reasoning["content"] = [] if is_begun else [_content_part(block)]
        if _ENCRYPTED in (self.request.get("include") or ()) and not is_begun:
            reasoning["encrypted_content"] = seal(block.text)
        return reasoning

    def _id_of(self, block: Block) -> str:
        prefix = {"reasoning": "rs", "text": "msg", "call": "fc"}[block.kind]
        return f"{prefix}_{self._suffix}{block.index:04x}"

    def _function(self, block: Block) -> Fields:
        """Return the names of the function that a call is of."""
        return self._namespaced.get(block.name, {"name": block.name})

    def _head(self) -> Fields:
        request = self.request
        return {
            **{name: request.get(name) or default for name, default in _ECHOED.items()},
            "id": self.id,
            "object": "response",
            "created_at": self._created_at,
            "error": None,
            "model": request.get("model") or self.read.model or "",
            "parallel_tool_calls": request.get("parallel_tool_calls") is not False,
            "store": request.get("store") is not False,
            "temperature": request.get("temperature"),
            "top_p": request.get("top_p"),
            "truncation": "disabled",
        }


_ECHOED: Fields = {
    **dict.fromkeys(("instructions", "max_output_tokens", "previous_response_id", "user")),
    "metadata": {},
    "reasoning": {"effort": None, "summary": None},
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
}
"""What a response says again of its request, and what it says where that has none."""


def _content_part(block: Block) -> Fields:
    if block.kind == "reasoning":
        return {"type": "reasoning_text", "text": block.text}
    return {"type": "output_text", "text": block.text, "annotations": [], "logprobs": []}


_EVENTS = {
    "text": ("output_text", "text"),
    "reasoning": ("reasoning_text", "text"),
    "call": ("function_call_arguments", "arguments"),
}

# What may be named later


class StoredResponses:
    """The conversations and the items of converted responses that were used last, each for the attempt that got it.

    In this process alone.

    Args:
        max_bytes: How much is kept in all, about. What a response continues counts once.
    """

    def __init__(self, *, max_bytes: int = 256 * 1024 * 1024) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._known: OrderedDict[tuple[str | None, str], tuple[list[Any], int]] = OrderedDict()
        """Items and their size, by the id of a response, or of one item."""

    def keep(self, attempt_id: str | None, request: Fields, response: Fields, size: int) -> None:
        """Keep a response; those that were not used for longest are forgotten for it.

        Args:
            attempt_id: Whose it is.
            request: What was asked, as `resolve` returned it.
            response: What was answered.
            size: Of both in bytes, about.
        """
        items = response["output"]
        for item in items:
            self._known[attempt_id, str(item["id"])] = ([item], 0)
        self._known[attempt_id, str(response["id"])] = ([*_given_items(request), *items], size)
        self._bytes += size
        while self._bytes > self._max_bytes:
            self._bytes -= self._known.popitem(last=False)[1][1]

    def resolve(self, attempt_id: str | None, request: Fields) -> Fields:
        """Return a request with the conversation and the items that it names; the same object where none is known."""
        before = self._items(attempt_id, request.get("previous_response_id"))
        given = _given_items(request)
        items: list[Any] = []
        for item in given:
            named = item.get("id") if mapping(item).get("type") == "item_reference" else None
            items += self._items(attempt_id, named) or [item]
        if not before and all(one is two for one, two in zip(items, given, strict=True)):
            return request
        resolved = {**request, "input": [*before, *items]}
        if before:
            key = attempt_id, str(resolved.pop("previous_response_id"))
            self._bytes -= self._known[key][1]
            self._known[key] = (before, 0)  # what continues it counts it, too
        return resolved

    def _items(self, attempt_id: str | None, named: Any) -> list[Any]:
        """Return the items up to a response, or the item, of this id; none where it is not known."""
        key = attempt_id, str(named)
        if key not in self._known:
            return []
        self._known.move_to_end(key)
        return self._known[key][0]


def _given_items(request: Fields) -> list[Any]:
    given = request.get("input")
    return given if isinstance(given, list) else [] if given is None else [{"role": "user", "content": given}]
