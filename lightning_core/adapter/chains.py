"""Which calls of an attempt are of one conversation, and why a training row begins with a call."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

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


class Link(NamedTuple):
    """How a call goes on with an earlier one."""

    before: ModelCall | None
    """The latest call of the same conversation; None where it is the first."""
    start: RowStart
    """Why a row begins with it, if one does."""


def link(call: ModelCall, earlier: Sequence[ModelCall]) -> Link:
    """Find the call that a call goes on with, by its tokens or by what was said.

    Args:
        call: The call.
        earlier: Those before it, in order.
    """
    if not earlier:
        return Link(None, "first_call")
    said, related = call.messages, None
    for other in reversed(earlier):
        if _has_tokens_of(call, other):
            return Link(other, "branched")
        before = other.messages
        if before and said[: len(before)] == before:
            return Link(other, _start_after(call, other, said[len(before) :]))
        if related is None and _begin_alike(before, said):
            related = other
    if related is not None:
        return Link(related, "history_edited")
    return Link(None, "other_conversation" if said else "unknown")


def longest_chain(calls: Sequence[ModelCall]) -> list[ModelCall]:
    """Return the calls of the conversation with the most calls, of equal ones of that with the most tokens.

    Args:
        calls: In the order of the attempt.
    """
    leaders: dict[int, int] = {}
    chains: defaultdict[int, list[ModelCall]] = defaultdict(list)
    for place, call in enumerate(calls):
        before = link(call, calls[:place]).before
        leaders[call.order] = call.order if before is None else leaders[before.order]
        chains[leaders[call.order]].append(call)
    return max(chains.values(), key=lambda chain: (len(chain), sum(map(_tokens, chain))), default=[])


def _start_after(call: ModelCall, other: ModelCall, rest: Sequence[Mapping[str, Any]]) -> RowStart:
    if call.tools != other.tools:
        return "tools_changed"
    if not rest:
        return "same_prompt"
    return "text_only" if _said(rest[0]) in map(_said, other.answers) else "history_edited"


def _has_tokens_of(call: ModelCall, other: ModelCall) -> bool:
    """Tell whether a prompt begins with another one and its answer."""
    prompt, known = call.prompt_token_ids or (), other.prompt_token_ids or ()
    if not known or len(prompt) <= len(known) or prompt[len(known) - 1] != known[-1]:  # the rest takes time
        return False
    whole = [*prompt]
    answers = [[*choice.token_ids] for choice in other.choices if choice.token_ids]
    return any(whole[: len(known) + len(answer)] == [*known, *answer] for answer in answers)


def _begin_alike(one: Sequence[Mapping[str, Any]], other: Sequence[Mapping[str, Any]]) -> bool:
    """Tell whether two conversations have their first message in common, and their instructions or the answer, too."""
    turns = [[message for message in said if message.get("role") not in INSTRUCTIONS] for said in (one, other)]
    shared = 1 if one[:1] == other[:1] else 2
    return len(turns[0]) >= shared and turns[0][:shared] == turns[1][:shared]


def _said(message: Mapping[str, Any]) -> tuple[str, list[Any]]:
    """Return what an answer says, in whatever form a client sends it back."""
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))
    return str(content or "").strip(), [call["function"]["name"] for call in message.get("tool_calls") or ()]


def _tokens(call: ModelCall) -> int:
    return len(call.prompt_token_ids or ()) + sum(len(choice.token_ids or ()) for choice in call.choices)
