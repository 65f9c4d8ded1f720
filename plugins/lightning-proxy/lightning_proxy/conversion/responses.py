"""OpenAI's responses API, `/v1/responses`, as chat."""

import base64
import binascii
import re
import secrets
import time
from collections import OrderedDict
from typing import Any

from lightning_proxy.answer import mapping, objects
from lightning_proxy.conversion.base import (
    NOT_CONVERTIBLE,
    SAME_IN_CHAT,
    Block,
    ChatAnswer,
    Conversion,
    Fields,
    Step,
    StreamConversion,
    content_of,
    list_of_objects,
    object_at,
    require_known,
    text_at,
    unconvertible,
)
from lightning_proxy.jsons import dump
from lightning_proxy.request import Refused

_CONVERTED = frozenset(
    {
        *("input", "instructions", "max_output_tokens", "tools", "tool_choice", "parallel_tool_calls", "text"),
        *("reasoning", "include", "truncation", "stop"),
    }
)
_WITHOUT_MEANING = frozenset(
    {
        *("metadata", "user", "safety_identifier", "service_tier", "client_metadata", "store", "stream_options"),
        *("prompt_cache_key", "prompt_cache_retention", "prompt_cache_options", "max_tool_calls"),
        "previous_response_id",
    }
)
"""Of whose it is, how fast it is, and where it is kept; of tools that the provider runs; and of what `StoredItems` has
put into the input."""

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
_OURS = "agl-"
"""Begins what stands for encrypted reasoning: clients that store nothing send that back, and leave out the text."""

_REASONS = {"length": "max_output_tokens", "content_filter": "content_filter"}


class ResponsesConversion(Conversion):
    """Items, and chat messages."""

    hosted_tools = ("web_search", "file_search", "code_interpreter", "image_generation", "mcp", "tool_search")

    def request(self, fields: Fields) -> Fields:
        require_known(fields, SAME_IN_CHAT | _CONVERTED | _WITHOUT_MEANING)
        if fields.get("truncation") not in (None, "disabled"):
            raise unconvertible("truncation", f"is {fields['truncation']!r:.100}; say 'disabled'")
        include = fields.get("include") or []
        if not isinstance(include, list):
            raise Refused(400, "invalid_request", f"include is {include!r:.100}; it is a list of texts")
        if "message.output_text.logprobs" in include:
            raise unconvertible("include", "asks for log-probabilities; leave them out, they are recorded anyhow")
        chat: Fields = {name: fields[name] for name in SAME_IN_CHAT if fields.get(name) is not None}
        instructions = fields.get("instructions")
        if not isinstance(instructions, str | None):
            raise unconvertible("instructions", "is not a text; say it in input")
        system = [{"role": "system", "content": instructions}] if instructions else []
        chat["messages"] = [*system, *_messages(fields.get("input"))]
        if not chat["messages"]:
            raise Refused(400, "invalid_request", "input is empty; say what the model is to answer")
        if fields.get("stop") is not None:  # vLLM's, and what `models` sets
            chat["stop"] = fields["stop"]
        if fields.get("max_output_tokens") is not None:
            chat["max_tokens"] = fields["max_output_tokens"]
        tools = list_of_objects(fields.get("tools"), "tools")
        if tools:
            chat["tools"] = _tools(tools)
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

    def answer(self, chat: Fields, request: Fields) -> Fields:
        read = ChatAnswer()
        read.feed(chat)
        read.finish()
        if not read.blocks:
            read.begin_empty_text()
            read.finish()
        return _Items(read, request).response()

    def stream(self, request: Fields) -> StreamConversion:
        return _ResponsesStream(request)


# From items to chat


def _messages(given: Any) -> list[Fields]:
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    found: list[Fields] = []
    turn: Fields | None = None
    """The model's, to which the next item may belong: an answer of a chat is one message."""
    for place, item in enumerate(list_of_objects(given, "input")):
        name, kind = f"input[{place}]", item.get("type", "message")
        if kind == "message" and item.get("role") != "assistant":
            found.append(_message(item, name))
            turn = None
        elif kind == "function_call_output":
            found.append(_result(item, name))
            turn = None
        elif kind in ("message", "function_call", "reasoning"):
            if turn is None or not _goes_on(turn, given[place - 1], item):
                turn = {"role": "assistant", "content": None}
                found.append(turn)
            _add_to_turn(turn, kind, item, name)
        elif kind == "item_reference":
            raise unconvertible(name, "names an item that is not stored here; say store=False, and send items whole")
        else:
            raise unconvertible(f"{name}.type", f"is {kind!r:.100}; send messages, function calls and their results")
    return found


def _goes_on(turn: Fields, last: Fields, item: Fields) -> bool:
    """Whether an item belongs to the answer that the item before it is of, or to the next one."""
    ids = [_ID.fullmatch(str(each.get("id"))) for each in (last, item)]
    if ids[0] is not None and ids[1] is not None:
        return ids[0][1] == ids[1][1]
    # Others may have no ids. One answer never has two texts in a row, and before calls are answered there is no next.
    return "tool_calls" in turn or {each.get("type", "message") for each in (last, item)} != {"message"}


def _add_to_turn(turn: Fields, kind: str, item: Fields, name: str) -> None:
    if kind == "message":
        turn["content"] = (turn["content"] or "") + _answered_text(item, name)
    elif kind == "function_call":
        require_known(item, _CALL, name)
        function = {"name": _name_in_chat(item, name), "arguments": text_at(item, "arguments", name)}
        call = {"id": text_at(item, "call_id", name), "type": "function", "function": function}
        turn.setdefault("tool_calls", []).append(call)
    elif reasoning := _reasoning(item, name):
        turn["reasoning_content"] = turn.get("reasoning_content", "") + reasoning


def _message(item: Fields, name: str) -> Fields:
    require_known(item, _MESSAGE, name)
    role = _ROLES.get(str(item.get("role")))
    if role is None:
        roles = ", ".join(_ROLES)
        raise Refused(400, "invalid_request", f"{name}.role is {item.get('role')!r:.100}; it is one of {roles}")
    return {"role": role, "content": _content(item.get("content"), f"{name}.content")}


def _content(content: Any, name: str) -> str | list[Fields]:
    if isinstance(content, str):
        return content
    parts = [_part(part, f"{name}[{place}]") for place, part in enumerate(list_of_objects(content, name))]
    return content_of(parts) if parts else ""


def _part(part: Fields, name: str) -> Fields:
    kind = part.get("type")
    if kind in ("input_text", "output_text", "text"):
        require_known(part, {"type", "text", "annotations", "logprobs"}, name)
        return {"type": "text", "text": text_at(part, "text", name)}
    if kind == "input_image" and part.get("image_url") is not None:
        require_known(part, {"type", "image_url", "detail"}, name)
        image = {"url": text_at(part, "image_url", name)}
        if part.get("detail") not in (None, "auto"):
            image["detail"] = part["detail"]
        return {"type": "image_url", "image_url": image}
    raise unconvertible(f"{name}.type", f"is {kind!r:.100}; send text, or an image by its image_url")


def _answered_text(item: Fields, name: str) -> str:
    require_known(item, _MESSAGE, name)
    content = item.get("content")
    if isinstance(content, str):
        return content
    texts = []
    for place, part in enumerate(list_of_objects(content, f"{name}.content")):
        where = f"{name}.content[{place}]"
        read = {"type": "text", "text": part["refusal"]} if isinstance(part.get("refusal"), str) else _part(part, where)
        if read["type"] != "text":
            raise unconvertible(f"{where}.type", f"is {part.get('type')!r:.100}; an answer has text")
        texts.append(str(read["text"]))
    return "".join(texts)


def _reasoning(item: Fields, name: str) -> str:
    require_known(item, _REASONING, name)
    parts = list_of_objects(item.get("content"), f"{name}.content")
    if parts:
        return "".join(text_at(part, "text", f"{name}.content[{place}]") for place, part in enumerate(parts))
    kept = item.get("encrypted_content")
    if kept is None:
        return ""
    try:
        if not isinstance(kept, str) or not kept.startswith(_OURS):
            raise ValueError("of another model")
        return base64.b64decode(kept.removeprefix(_OURS), validate=True).decode()
    except (ValueError, binascii.Error):
        raise unconvertible(f"{name}.encrypted_content", "is of another model; leave this item out") from None


def _result(item: Fields, name: str) -> Fields:
    require_known(item, _RESULT, name)
    content = _content(item.get("output"), f"{name}.output")
    return {"role": "tool", "tool_call_id": text_at(item, "call_id", name), "content": content}


def _tools(tools: list[Fields]) -> list[Fields]:
    found: list[Fields] = []
    for place, tool in enumerate(tools):
        name = f"tools[{place}]"
        found += _namespace(tool, name) if tool.get("type") == "namespace" else [_tool(tool, name)]
    names = [tool["function"]["name"] for tool in found]
    if twice := [name for name in _namespaced(tools) if names.count(name) > 1]:
        raise unconvertible("tools", f"has two functions that chat would call {twice[0]!r:.100}; rename one of them")
    return found


def _namespace(group: Fields, name: str) -> list[Fields]:
    """Return the functions of a group, each under a name of its own; the first one tells what they have in common."""
    require_known(group, _NAMESPACE, name)
    tools = list_of_objects(group.get("tools"), f"{name}.tools")
    found = [_tool(tool, f"{name}.tools[{place}]") for place, tool in enumerate(tools)]
    for converted, tool in zip(found, tools, strict=True):
        converted["function"]["name"] = _name_in_chat({**tool, "namespace": text_at(group, "name", name)}, name)
    if found and group.get("description"):
        said = [f"{group['name']}: {text_at(group, 'description', name)}", found[0]["function"].get("description")]
        found[0]["function"]["description"] = "\n\n".join(filter(None, said))
    return found


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


def _tool(tool: Fields, name: str) -> Fields:
    if tool.get("type") != "function":
        raise unconvertible(f"{name}.type", f"is {tool.get('type')!r:.100}, not 'function'; turn this tool off")
    require_known(tool, _TOOL, name)
    function: Fields = {"name": text_at(tool, "name", name)}
    function |= {key: tool[key] for key in ("description", "parameters", "strict") if tool.get(key) is not None}
    return {"type": "function", "function": function}


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
    found: Fields = {} if is_default else {"verbosity": config["verbosity"]}
    wanted = dict(object_at(config, "format", "text"))
    kind = wanted.pop("type", "text")
    if kind == "json_schema":
        require_known(wanted, {"name", "schema", "strict", "description"}, "text.format")
        found["response_format"] = {"type": kind, "json_schema": wanted}
    elif kind == "json_object":
        found["response_format"] = {"type": kind}
    elif kind != "text":
        raise unconvertible("text.format.type", f"is {kind!r:.100}; it is text, json_schema or json_object")
    return found


# From chat to items


class _Items:
    """The response that an answer makes, as far as it came."""

    def __init__(self, read: ChatAnswer, request: Fields) -> None:
        self._read = read
        self._request = request
        self._namespaced = _namespaced(request.get("tools"))
        self._id = secrets.token_hex(12)
        self.response_id = f"resp_{self._id}"
        self._created_at = int(time.time())

    def id_of(self, block: Block) -> str:
        prefix = {"reasoning": "rs", "text": "msg", "call": "fc"}[block.kind]
        return f"{prefix}_{self._id}{block.index:04x}"

    def item(self, block: Block, status: str = "completed") -> Fields:
        head: Fields = {"id": self.id_of(block), "status": status}
        is_begun = status == "in_progress"
        if block.kind == "text":
            parts = [] if is_begun else [self.part(block)]
            return {**head, "type": "message", "role": "assistant", "content": parts}
        if block.kind == "call":
            call = {"call_id": block.call_id, **self.function(block), "arguments": block.text}
            return {**head, "type": "function_call", **call}
        reasoning: Fields = {**head, "type": "reasoning", "summary": []}
        reasoning["content"] = [] if is_begun else [self.part(block)]
        if _ENCRYPTED in (self._request.get("include") or ()) and not is_begun:
            reasoning["encrypted_content"] = _OURS + base64.b64encode(block.text.encode("utf-8", "replace")).decode()
        return reasoning

    def function(self, block: Block) -> Fields:
        """Return the names of the function that a call is of."""
        return self._namespaced.get(block.name, {"name": block.name})

    def part(self, block: Block) -> Fields:
        if block.kind == "reasoning":
            return {"type": "reasoning_text", "text": block.text}
        return {"type": "output_text", "text": block.text, "annotations": [], "logprobs": []}

    def response(self) -> Fields:
        """Return the whole response.

        Raises:
            Refused: When the API does not know how the answer ended.
        """
        read = self._read
        reason = read.finish_reason or "stop"
        if reason not in ("stop", "tool_calls", *_REASONS):
            raise Refused(502, NOT_CONVERTIBLE, f"the engine ended its answer with {reason!r}")
        incomplete = _REASONS.get(reason)
        usage = {
            "input_tokens": read.input_tokens,
            "input_tokens_details": {"cached_tokens": read.cached_tokens, "cache_write_tokens": 0},
            "output_tokens": read.output_tokens,
            "output_tokens_details": {"reasoning_tokens": read.reasoning_tokens},
            "total_tokens": read.input_tokens + read.output_tokens,
        }
        # Where the engine was cut off, its last item is not complete.
        last = "completed" if incomplete is None else "incomplete"
        items = [self.item(block, last if block is read.blocks[-1] else "completed") for block in read.blocks]
        return {
            **self._head(),
            "status": "completed" if incomplete is None else "incomplete",
            "incomplete_details": None if incomplete is None else {"reason": incomplete},
            "output": items,
            "usage": usage,
        }

    def begun(self) -> Fields:
        """Return the response before anything came."""
        return {**self._head(), "status": "in_progress", "incomplete_details": None, "output": [], "usage": None}

    def _head(self) -> Fields:
        request = self._request
        return {
            "id": self.response_id,
            "object": "response",
            "created_at": self._created_at,
            "error": None,
            "instructions": request.get("instructions"),
            "max_output_tokens": request.get("max_output_tokens"),
            "metadata": request.get("metadata") or {},
            "model": request.get("model") or self._read.model or "",
            "parallel_tool_calls": request.get("parallel_tool_calls") is not False,
            "previous_response_id": request.get("previous_response_id"),
            "reasoning": request.get("reasoning") or {"effort": None, "summary": None},
            "store": request.get("store") is not False,
            "temperature": request.get("temperature"),
            "text": request.get("text") or {"format": {"type": "text"}},
            "tool_choice": request.get("tool_choice") or "auto",
            "tools": request.get("tools") or [],
            "top_p": request.get("top_p"),
            "truncation": "disabled",
            "user": request.get("user"),
        }


class _ResponsesStream(StreamConversion):
    def __init__(self, request: Fields) -> None:
        self._read = ChatAnswer()
        self._items = _Items(self._read, request)
        self.id = self._items.response_id
        self._number = 0

    def feed(self, chunk: Fields) -> list[Fields]:
        steps = self._read.feed(chunk)
        return [*self._begin(), *self._events(steps)]

    def finish(self) -> list[Fields]:
        read = self._read
        steps = [] if read.blocks else read.begin_empty_text()
        events = [*self._begin(), *self._events([*steps, *read.finish()])]
        response = self._items.response()
        return [*events, self._event(f"response.{response['status']}", response=response)]

    def _begin(self) -> list[Fields]:
        if self._number:
            return []
        begun = self._items.begun()
        return [self._event("response.created", response=begun), self._event("response.in_progress", response=begun)]

    def _event(self, kind: str, **fields: Any) -> Fields:
        number, self._number = self._number, self._number + 1
        return {"type": kind, "sequence_number": number, **fields}

    def _events(self, steps: list[Step]) -> list[Fields]:
        return [event for step in steps for event in self._events_of(step)]

    def _events_of(self, step: Step) -> list[Fields]:
        block, items = step.block, self._items
        item: Fields = {"item_id": items.id_of(block), "output_index": block.index}
        part = item if block.kind == "call" else {**item, "content_index": 0}
        kind, text_name = _EVENTS[block.kind]
        logprobs: Fields = {"logprobs": []} if block.kind == "text" else {}
        if step.what == "piece":
            return [self._event(f"response.{kind}.delta", **part, delta=step.text, **logprobs)]
        if step.what == "begin":
            begun = items.item(block, "in_progress")
            events = [self._event("response.output_item.added", output_index=block.index, item=begun)]
            if block.kind != "call":
                events.append(self._event("response.content_part.added", **part, part=items.part(block)))
            return events
        named = {"name": items.function(block)["name"]} if block.kind == "call" else {}
        events = [self._event(f"response.{kind}.done", **part, **{text_name: block.text}, **named, **logprobs)]
        if block.kind != "call":
            events.append(self._event("response.content_part.done", **part, part=items.part(block)))
        events.append(self._event("response.output_item.done", output_index=block.index, item=items.item(block)))
        return events


_EVENTS = {
    "text": ("output_text", "text"),
    "reasoning": ("reasoning_text", "text"),
    "call": ("function_call_arguments", "arguments"),
}


_REFERENCE = "item_reference"
_PREVIOUS = "previous_response_id"


def _items_of(given: Any) -> list[Any]:
    return [{"role": "user", "content": given}] if isinstance(given, str) else list(given or ())


class StoredItems:
    """The newest items and responses, each for the attempt that got it. In this process alone.

    Args:
        max_bytes: How much is kept in all.
    """

    def __init__(self, *, max_bytes: int = 64 * 1024 * 1024) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._items: OrderedDict[tuple[str | None, str], tuple[Fields, int]] = OrderedDict()

    def keep(self, attempt_id: str | None, item: Fields) -> None:
        """Keep an item; the oldest ones are forgotten for it."""
        self._keep((attempt_id, str(item["id"])), item)  # an id is of one item

    def keep_response(self, attempt_id: str | None, response: Fields, request: Fields) -> None:
        """Keep what a response adds to its conversation, so that a request may go on from it.

        Args:
            attempt_id: The attempt that got it.
            response: The response.
            request: What it answers, before `with_history`.
        """
        turn = {
            "items": [*_items_of(request.get("input")), *response["output"]],
            "previous": request.get(_PREVIOUS),
        }
        self._keep((attempt_id, str(response["id"])), turn)

    def has(self, attempt_id: str | None, identity: str) -> bool:
        """Tell whether an item or a response of an attempt is kept."""
        return (attempt_id, identity) in self._items

    def with_history(self, attempt_id: str | None, request: Fields) -> Fields:
        """Return a request with all that was said up to the response that it goes on from.

        Raises:
            Refused: When a part of it is not kept.
        """
        previous = request.get(_PREVIOUS)
        if previous is None:
            return request
        items = _items_of(request.get("input"))
        while previous is not None:
            key = attempt_id, str(previous)
            if key not in self._items:
                message = f"the proxy does not keep response {previous!r:.200} any more; send the whole conversation"
                raise Refused(400, "previous_response_not_found", message)
            self._items.move_to_end(key)
            turn = self._items[key][0]
            items, previous = [*turn["items"], *items], turn["previous"]
        return {**request, "input": items}

    def _keep(self, key: tuple[str | None, str], value: Fields) -> None:
        size = len(dump(value))
        self._items[key] = value, size
        self._bytes += size
        while self._bytes > self._max_bytes:
            self._bytes -= self._items.popitem(last=False)[1][1]

    def resolve(self, attempt_id: str | None, request: Fields) -> Fields:
        """Return a request with the items that it names; the same object where it names none that are known."""
        given = request.get("input")
        if not isinstance(given, list):
            return request
        found = [self._resolved(attempt_id, item) for item in given]
        is_same = all(one is two for one, two in zip(found, given, strict=True))
        return request if is_same else {**request, "input": found}

    def _resolved(self, attempt_id: str | None, item: Any) -> Any:
        if not isinstance(item, dict) or item.get("type") != _REFERENCE:
            return item
        known = self._items.get((attempt_id, str(item.get("id"))))
        return item if known is None else known[0]
