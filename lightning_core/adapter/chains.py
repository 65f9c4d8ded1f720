"""Which calls of an attempt are of one conversation, and why a training row begins with a call."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Literal

from lightning_core.adapter.calls import ModelCall

RowStart = Literal[
    "first_call",
    "same_prompt",
    "branched",
    "tools_changed",
    "history_edited",
    "text_only",
    "other_conversation",
    "unknown",
]
"""Why a row begins: see `docs/components.md`."""


INSTRUCTIONS = ("system", "developer")
"""The roles of messages that are not part of what was said."""


class Conversations:
    """Which earlier call a call goes on with, by what was said. Calls are looked for by their first turn."""

    def __init__(self) -> None:
        self._by_turn: defaultdict[str, list[ModelCall]] = defaultdict(list)

    def add(self, call: ModelCall) -> None:
        """Take the next call of the attempt."""
        if call.messages:
            self._by_turn[_first_turn(call)].append(call)

    def start(self, call: ModelCall, continued: ModelCall | None = None) -> RowStart:
        """Say why a row begins with a call, by the call that it goes on with, among those that were added.

        Args:
            call: The call.
            continued: The one whose tokens its prompt begins with. Only a later one tells why the row breaks off.
        """
        messages, is_related = call.messages, False
        for other in reversed(self._by_turn.get(_first_turn(call), ()) if messages else ()):
            if continued is not None and other.order <= continued.order:
                break
            before = other.messages
            # Calls that branch have a long beginning in common, and differ in the last message.
            if messages[len(before) - 1 : len(before)] == before[-1:] and messages[: len(before)] == before:
                return _start_after(call, other, messages[len(before) :])
            is_related = is_related or _begin_alike(before, messages)
        if continued is not None:
            return "branched"
        if is_related:
            return "history_edited"
        return "other_conversation" if messages else "unknown"


def _turns(messages: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    return (message for message in messages if message.get("role") not in INSTRUCTIONS)


def _first_turn(call: ModelCall) -> str:
    return repr(next(_turns(call.messages), None))


def _start_after(call: ModelCall, other: ModelCall, rest: Sequence[Mapping[str, Any]]) -> RowStart:
    if call.tools != other.tools:
        return "tools_changed"
    if not rest:
        return "same_prompt"
    return "text_only" if _text_and_tools(rest[0]) in map(_text_and_tools, other.answers) else "history_edited"


def _begin_alike(one: Sequence[Mapping[str, Any]], other: Sequence[Mapping[str, Any]]) -> bool:
    """Tell whether two conversations have their first message in common, and their instructions or the answer, too."""
    shared = 1 if one[:1] == other[:1] else 2
    turns = [list(islice(_turns(messages), shared)) for messages in (one, other)]
    return len(turns[0]) == shared and turns[0] == turns[1]


def _text_and_tools(message: Mapping[str, Any]) -> tuple[str, list[Any]]:
    """Return what an answer says, in whatever form a client sends it back."""
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))
    return str(content or "").strip(), [call["function"]["name"] for call in message.get("tool_calls") or ()]
