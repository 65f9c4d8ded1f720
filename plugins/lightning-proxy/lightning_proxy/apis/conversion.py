"""APIs for conversations in front of an engine that speaks chat, which is how its tokens are recorded.

A call is sent as the chat that says the same, and its answer is handed back in the agent's API, event by event where it
is streamed. What chat cannot say is refused by its name, and never left out.
"""

import base64
import json
import secrets
from abc import ABC, abstractmethod
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from lightning_proxy.answer import integer, mapping, objects, text_of
from lightning_proxy.apis.base import Dialect, Fields
from lightning_proxy.jsons import text
from lightning_proxy.request import Refused, invalid

NOT_CONVERTIBLE = "not_convertible"

SAME_IN_CHAT = {
    name: name
    for name in (
        *("model", "stream", "temperature", "top_p", "top_k", "min_p", "seed", "stop_token_ids", "ignore_eos"),
        *("presence_penalty", "frequency_penalty", "repetition_penalty", "min_tokens", "chat_template_kwargs"),
    )
}
"""What has the same name and meaning in chat; some of it engines add to their APIs."""


def unconvertible(name: str, what: str) -> Refused:
    """Return the error of a request that chat cannot say.

    Args:
        name: The field, such as `tools[3].type`.
        what: What it is, and what to do about it.
    """
    return Refused(
        400,
        NOT_CONVERTIBLE,
        f"{name} {what}. This model's engine speaks chat, which is how its tokens are recorded; chat cannot say this",
    )


def require_known(given: Mapping[str, Any], known: Set[str], name: str = "") -> None:
    """Refuse fields that are not known; what is null counts as left out.

    Args:
        given: An object of the request.
        known: The names of the fields that it may have.
        name: Where the object stands, such as `tools[3]`; empty for the request itself.

    Raises:
        Refused: Names the field.
    """
    for field_name, value in given.items():
        if field_name not in known and value is not None:
            path = f"{name}.{field_name}" if name else field_name
            raise unconvertible(path, "is none of the fields that can be converted; leave it out, or turn it off")


def named_objects(value: Any, name: str) -> list[tuple[str, Fields]]:
    """Return the objects of a list of the request, each with where it stands; none for null.

    Raises:
        Refused: When it is something else.
    """
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise invalid(f"{name} is {value!r:.100}; it is a list of objects")
    return [(f"{name}[{place}]", item) for place, item in enumerate(value)]


def object_at(given: Mapping[str, Any], field_name: str, name: str = "") -> Fields:
    """Return an object of the request; an empty one for null.

    Raises:
        Refused: When it is something else.
    """
    value = given.get(field_name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        path = f"{name}.{field_name}" if name else field_name
        raise invalid(f"{path} is {value!r:.100}; it is an object")
    return value


def text_at(given: Mapping[str, Any], field_name: str, name: str) -> str:
    """Return a text of the request.

    Raises:
        Refused: When it is something else.
    """
    value = given.get(field_name)
    if not isinstance(value, str):
        raise invalid(f"{name}.{field_name} is {value!r:.100}; it is a text")
    return value


def content_of(parts: list[Fields]) -> str | list[Fields]:
    """Return chat's content of parts: the text where it is one, an empty one where there is none, else the list."""
    if len(parts) == 1 and parts[0]["type"] == "text":
        return str(parts[0]["text"])
    return parts or ""


class Turn:
    """An answer of the model within a conversation, of which other APIs than chat have the parts apart."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.reasoning: list[str] = []
        self.shown: list[str] = []
        """Reasoning as the agent sees it, which counts where there is no other."""
        self.calls: list[Fields] = []

    def add_call(self, call_id: str, name: str, arguments: str) -> None:
        """Add a tool's call."""
        self.calls.append({"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}})

    def message(self) -> Fields:
        """Return it as a message of chat: reasoning, text and calls."""
        text, reasoning = "".join(self.texts), "".join(self.reasoning or self.shown)
        message: Fields = {"role": "assistant", "content": text or (None if self.calls else "")}
        if reasoning:
            message["reasoning_content"] = reasoning
        if self.calls:
            message["tool_calls"] = self.calls
        return message


def messages_of(messages: list[Fields | Turn]) -> list[Fields]:
    """Return messages of chat, those of the model included."""
    return [each.message() if isinstance(each, Turn) else each for each in messages]


_INVALID = "INVALID_JSON"
"""In an input, alone: the arguments as the model wrote them, which are no JSON object. Anthropic's name for it."""


def arguments_text(given: Any) -> str:
    """Return the arguments of a call as chat has them. What a model wrote badly may be a list or a number."""
    given = {} if given is None else given
    is_invalid = isinstance(given, dict) and list(given) == [_INVALID] and isinstance(given[_INVALID], str)
    return given[_INVALID] if is_invalid else text(given)


def arguments_object(written: str) -> Fields:
    """Return the arguments of a call. A model may call with what is no JSON object: that is its answer, too."""
    try:
        arguments = json.loads(written or "{}")
        json.dumps(arguments, allow_nan=False)
    except (ValueError, RecursionError):
        arguments = None
    return arguments if isinstance(arguments, dict) else {_INVALID: written}


def function_tool(given: Fields, name: str, **names: str) -> Fields:
    """Return chat's tool of a function; `names` say how the API calls chat's fields, where they have other names."""
    function: Fields = {"name": text_at(given, "name", name)}
    for field_name in ("description", "parameters", "strict"):
        if (value := given.get(names.get(field_name, field_name))) is not None:
            function[field_name] = value
    return {"type": "function", "function": function}


_SEAL = b"agl-"
"""Begins what stands for encrypted reasoning: clients that store nothing send that back, and leave out the text."""


def seal(reasoning: str) -> str:
    """Return reasoning in the form of what only its provider can read, for clients to send back."""
    return base64.b64encode(_SEAL + reasoning.encode("utf-8", "replace")).decode()


def unseal(sealed: Any) -> str | None:
    """Return the reasoning again; None for what is of another model, or made up by a client."""
    try:  # clients write it in either alphabet
        found = base64.b64decode(str(sealed).replace("-", "+").replace("_", "/") + "==")
        return found.removeprefix(_SEAL).decode() if found.startswith(_SEAL) else None
    except ValueError:
        return None


# What a chat answers

Kind = Literal["reasoning", "text", "call"]


@dataclass(slots=True, eq=False)
class Block:
    """A part of an answer: reasoning, a text, or a tool's call."""

    kind: Kind
    index: int
    """Counts from 0 among the parts of the answer."""
    call_id: str = ""
    name: str = ""
    """The tool's."""
    pieces: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The reasoning, the text, or the arguments of the call, as far as they came."""
        return "".join(self.pieces)


@dataclass(frozen=True, slots=True)
class Step:
    """What happens to a part while it comes."""

    what: Literal["begin", "piece", "end"]
    block: Block
    text: str = ""
    """The piece."""


class ChatAnswer:
    """The answer of a chat, whole or as far as it came, as parts in their order."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self.model: str | None = None
        self.finish_reason: str | None = None
        self.stop_sequence: str | None = None
        """The text that ended it, where the engine says so."""
        self.input_tokens = 0
        self.output_tokens = 0
        self.cached_tokens = 0
        self.reasoning_tokens = 0
        self._open: tuple[Kind, Any] | None = None
        self._calls: dict[Any, str] = {}
        """The ids of the calls, by their index: the newest where several have one."""
        self._held: list[tuple[Kind, str]] = []
        """What came amid a call: in other APIs a part ends before the next one begins."""

    @property
    def calls_tools(self) -> bool:
        """Whether it calls a tool."""
        return bool(self._calls)

    def feed(self, chunk: Fields) -> list[Step]:
        """Take a chunk of a stream, or an answer in one piece.

        Raises:
            Refused: When it has what no other API says.
        """
        self.model = text_of(chunk.get("model")) or self.model
        if isinstance(prompt := chunk.get("prompt_token_ids"), list) and not self.input_tokens:
            self.input_tokens = len(prompt)
        self._read_usage(mapping(chunk.get("usage")))
        steps: list[Step] = []
        for choice in objects(chunk.get("choices"))[:1]:
            steps += self._read_message(mapping(choice.get("delta")) or mapping(choice.get("message")))
            self.finish_reason = text_of(choice.get("finish_reason")) or self.finish_reason
            self.stop_sequence = text_of(choice.get("stop_reason")) or self.stop_sequence
        return steps

    def finish(self) -> list[Step]:
        """End the part that is open."""
        self._open, was_open = None, self._open
        steps = [] if was_open is None else [Step("end", self.blocks[-1])]
        held, self._held = self._held, []
        for kind, piece in held:
            steps += self._add(kind, None, piece)
        return steps + self.finish() if held else steps

    def begin_empty_text(self) -> list[Step]:
        """Add an empty text, for an API that has no answer without a part."""
        return self._begin("text", None)

    def _read_usage(self, usage: Fields) -> None:
        self.input_tokens = integer(usage.get("prompt_tokens")) or self.input_tokens
        self.output_tokens = integer(usage.get("completion_tokens")) or self.output_tokens
        prompt, sampled = mapping(usage.get("prompt_tokens_details")), mapping(usage.get("completion_tokens_details"))
        self.cached_tokens = integer(prompt.get("cached_tokens")) or self.cached_tokens
        self.reasoning_tokens = integer(sampled.get("reasoning_tokens")) or self.reasoning_tokens

    def _read_message(self, message: Fields) -> list[Step]:
        steps: list[Step] = []
        # vLLM has called it by both names, and some versions by both at once.
        if reasoning := text_of(message.get("reasoning_content")) or text_of(message.get("reasoning")):
            steps += self._add_or_hold("reasoning", reasoning)
        if content := _text_in(message.get("content")) or text_of(message.get("refusal")):
            steps += self._add_or_hold("text", content)
        for place, call in enumerate(objects(message.get("tool_calls"))):
            steps += self._read_call(call, call.get("index", place))
        return steps

    def _read_call(self, call: Fields, index: Any) -> list[Step]:
        function = mapping(call.get("function"))
        steps: list[Step] = []
        name, call_id = text_of(function.get("name")), text_of(call.get("id"))
        is_another = name is not None and call_id is not None and call_id != self._calls.get(index)
        if index not in self._calls or is_another:
            if name is None:
                raise Refused(502, NOT_CONVERTIBLE, f"the engine calls a tool without a function's name: {call!r:.200}")
            self._calls[index] = call_id or f"call_{secrets.token_hex(12)}"
            steps = self._begin("call", index, self._calls[index], name)
        arguments = function.get("arguments")
        if arguments := text(arguments) if isinstance(arguments, dict) else text_of(arguments):
            if self._open != ("call", index):
                raise Refused(502, NOT_CONVERTIBLE, "the engine goes on with a tool call after it began another one")
            steps += self._add("call", index, arguments)
        return steps

    def _begin(self, kind: Kind, key: Any, call_id: str = "", name: str = "") -> list[Step]:
        steps = self.finish()
        self._open = (kind, key)
        self.blocks.append(Block(kind, len(self.blocks), call_id, name))
        return [*steps, Step("begin", self.blocks[-1])]

    def _add_or_hold(self, kind: Kind, text: str) -> list[Step]:
        if self._open is None or self._open[0] != "call":
            return self._add(kind, None, text)
        self._held.append((kind, text))
        return []

    def _add(self, kind: Kind, key: Any, text: str) -> list[Step]:
        steps = [] if self._open == (kind, key) else self._begin(kind, key)
        self.blocks[-1].pieces.append(text)
        return [*steps, Step("piece", self.blocks[-1], text)]


def _text_in(content: Any) -> str | None:
    """Return the text of an answer, which a few engines give as a list of parts."""
    if not isinstance(content, list):
        return text_of(content)
    parts = objects(content)
    if other := [part.get("type") for part in parts if not isinstance(part.get("text"), str)]:
        raise Refused(502, NOT_CONVERTIBLE, f"the engine answered with a part of the type {other[0]!r:.100}")
    return "".join(str(part["text"]) for part in parts)


# The same in another API


class ChatStream(ABC):
    """An answer of a chat in the agent's API: as events while it comes, and whole once it has.

    Args:
        request: What the agent asked, in its API.
        answer_id: The id of the answer in that API.
    """

    needs_a_part: ClassVar[bool] = False
    """Whether an answer without a part has an empty text in this API."""

    def __init__(self, request: Fields, answer_id: str) -> None:
        self.id = answer_id
        self.request = request
        self.read = ChatAnswer()
        self._has_begun = False

    def feed(self, chunk: Fields) -> list[Fields]:
        """Return the events of a chunk.

        Raises:
            Refused: When the API cannot say what the engine said.
        """
        return self._events(self.read.feed(chunk))

    def take(self, chat: Fields) -> None:
        """Take an answer in one piece, of which no events are asked.

        Raises:
            Refused: When the API cannot say what the engine said.
        """
        self.read.feed(chat)
        self._end_parts()

    def finish(self) -> list[Fields]:
        """Return the events that end the stream, after its last chunk.

        Raises:
            Refused: When the API cannot say what the engine said.
        """
        return [*self._events(self._end_parts()), *self.end()]

    def begin(self) -> list[Fields]:
        """Return the events that begin the stream."""
        return []

    @abstractmethod
    def events(self, step: Step) -> list[Fields]:
        """Return the events of what happens to a part."""

    @abstractmethod
    def end(self) -> list[Fields]:
        """Return the events that come when all parts have ended."""

    @abstractmethod
    def answer(self) -> Fields:
        """Return the whole answer.

        Raises:
            Refused: When the API cannot say what the engine said.
        """

    def _end_parts(self) -> list[Step]:
        empty = self.read.begin_empty_text() if self.needs_a_part and not self.read.blocks else []
        return [*empty, *self.read.finish()]

    def _events(self, steps: list[Step]) -> list[Fields]:
        begun = [] if self._has_begun else self.begin()
        self._has_begun = True
        return [*begun, *(event for step in steps for event in self.events(step))]


class ConvertibleDialect(Dialect):
    """An API for conversations that an engine can answer by chat, which gives token ids."""

    is_always_converted: ClassVar[bool] = False
    """Whether no backend is asked in this API."""
    hosted_tools: ClassVar[tuple[str, ...]] = ()
    """How the types of tools begin that the provider of this API runs itself. An engine does not have them."""
    same: ClassVar[Mapping[str, str]] = {}
    """The fields of a request that have the same meaning in chat, and their names there."""
    taken: ClassVar[frozenset[str]] = frozenset()
    """Its other fields that are converted, or left out for a reason."""
    refused: ClassVar[frozenset[str]] = frozenset()
    """Its fields whose loss would make it another question."""

    def without_hosted_tools(self, fields: Fields) -> tuple[Fields, list[str]]:
        """Return a request without the tools that its provider would run, and their types."""
        tools = fields.get("tools")
        if not isinstance(tools, list):
            return fields, []
        kept = [tool for tool in tools if not str(mapping(tool).get("type")).startswith(self.hosted_tools)]
        if len(kept) == len(tools):
            return fields, []
        dropped = [str(tool["type"]) for tool in tools if tool not in kept]
        fields = {**fields, "tools": kept}
        if mapping(fields.get("tool_choice")).get("type") in dropped:
            fields.pop("tool_choice", None)
        return fields, dropped

    def without_hints(self, fields: Fields) -> tuple[Fields, list[str]]:
        """Return a request without the fields that nothing is known of, as newer clients send them, and their names."""
        known = self.same.keys() | self.taken | self.refused
        hints = [name for name, value in fields.items() if known and name not in known and value is not None]
        return {name: value for name, value in fields.items() if name not in hints} if hints else fields, hints

    def same_in_chat(self, fields: Fields) -> Fields:
        """Return what has the same meaning in chat, by its names there.

        Raises:
            Refused: Names a field that cannot be converted.
        """
        require_known(fields, self.same.keys() | self.taken)
        return {name: fields[key] for key, name in self.same.items() if fields.get(key) is not None}

    def overflow(self, message: str, tokens: int, most: int, fields: Fields) -> str:
        """Return the words by which clients of this API know that a conversation is too long, and make it shorter.

        Args:
            message: The engine's.
            tokens: How many the prompt has.
            most: How many the model sees.
            fields: What the agent asked, in its API.
        """
        return message

    @abstractmethod
    def to_chat(self, fields: Fields) -> Fields:
        """Return the chat request that asks the same.

        Raises:
            Refused: Names the field that chat does not have.
        """

    @abstractmethod
    def stream(self, request: Fields) -> ChatStream:
        """Begin an answer, streamed or not; `request` is what the agent asked, in its API."""

    def from_chat(self, chat: Fields, request: Fields) -> Fields:
        """Return the answer of a chat, in one piece, in the agent's API.

        Args:
            chat: The engine's answer.
            request: What the agent asked, in its API.

        Raises:
            Refused: When the API cannot say what the engine said.
        """
        stream = self.stream(request)
        stream.take(chat)
        return stream.answer()
