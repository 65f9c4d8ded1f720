"""From spans to training rows: consecutive calls become one row where the engine's tokens are exactly continuous."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, Literal, TypeVar

from lightning_core.adapter.base import TraceAdapter
from lightning_core.adapter.calls import ModelCall, calls_of
from lightning_core.adapter.chains import INSTRUCTIONS, RowStart, link, longest_chain
from lightning_core.adapter.rewards import match_by_sequence
from lightning_core.adapter.selection import CallSelector, pattern
from lightning_core.adapter.tree import in_order
from lightning_core.adapter.triplet import LlmProxyTraceToTriplet, TracerTraceToTriplet, TraceToTripletBase
from lightning_core.emitter import NamedReward, find_final_reward
from lightning_core.types import Span

logger = logging.getLogger(__name__)

RowT = TypeVar("RowT")


class _Node(Generic[RowT]):
    __slots__ = ("children", "edge", "rows")

    def __init__(self, edge: list[int]) -> None:
        self.edge = edge
        """The tokens between the node above and this one."""
        self.rows: list[RowT] = []
        """The rows whose tokens end here, the newest last."""
        self.children: dict[int, _Node[RowT]] = {}
        """By first token."""


class OpenRows(Generic[RowT]):
    """Rows by their tokens: a radix tree, so that a prefix that many rows share is compared once.

    Finding takes time linear in the prompt, adding and extending in the tokens that are new, however many rows there
    are.
    """

    def __init__(self) -> None:
        self._root: _Node[RowT] = _Node([])

    def find(self, prompt: Sequence[int]) -> "Match[RowT]":
        """Find the row whose tokens are the longest beginning of this prompt; of equal rows the newest.

        Args:
            prompt: Token ids.

        Returns:
            The match; its `row` is None when no row is a beginning of the prompt.
        """
        node, length = self._root, 0
        best, best_length = node, length
        while length < len(prompt):
            token = prompt[length]
            child = node.children.get(token) if type(token) is int else None
            if child is None:
                break
            piece = prompt[length : length + len(child.edge)]
            if (piece if isinstance(piece, list) else list(piece)) != child.edge:
                break
            node, length = child, length + len(child.edge)
            if node.rows:
                best, best_length = node, length
        return Match(best, best_length, node, length)

    def add(self, match: "Match[RowT]", row: RowT, tokens: Sequence[int]) -> None:
        """Add a row. The match is used up.

        Args:
            match: Where the row's prompt was looked for.
            row: The row.
            tokens: The row's tokens after the first `match.shared`.
        """
        _insert(match.deepest, row, list(tokens))

    def extend(self, match: "Match[RowT]", tokens: Sequence[int]) -> None:
        """Let the matched row go on with these tokens. The match is used up."""
        node = match.node
        row = node.rows.pop()
        if node.rows or node.children:
            _insert(node, row, list(tokens))
        else:
            node.edge.extend(tokens)
            node.rows.append(row)


class Match(Generic[RowT]):
    """Where a prompt left the rows."""

    __slots__ = ("deepest", "length", "node", "shared")

    def __init__(self, node: _Node[RowT], length: int, deepest: _Node[RowT], shared: int) -> None:
        self.node = node
        self.length = length
        """How many tokens the row has."""
        self.deepest = deepest
        self.shared = shared
        """How many of the prompt's tokens are known to be those of other rows."""

    @property
    def row(self) -> RowT | None:
        """The row, or None."""
        return self.node.rows[-1] if self.node.rows else None


def _insert(node: _Node[RowT], row: RowT, tokens: list[int]) -> None:
    while tokens:
        child = node.children.get(tokens[0])
        if child is None:
            leaf: _Node[RowT] = _Node(tokens)
            leaf.rows.append(row)
            node.children[tokens[0]] = leaf
            return
        shared = _shared_length(child.edge, tokens)
        if shared < len(child.edge):
            child = _split(node, child, shared)
        node, tokens = child, tokens[shared:]
    node.rows.append(row)


def _split(above: _Node[RowT], below: _Node[RowT], length: int) -> _Node[RowT]:
    """Put a node into the edge between two, after `length` tokens."""
    middle: _Node[RowT] = _Node(below.edge[:length])
    below.edge = below.edge[length:]
    middle.children[below.edge[0]] = below
    above.children[middle.edge[0]] = middle
    return middle


def _shared_length(one: list[int], other: list[int]) -> int:
    """Count the tokens that both begin with. Compares slices, which is faster than tokens, and linear as well."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


RefusalReason = Literal["failed", "no_token_ids", "bad_token_ids", "empty_answer"]
"""Why an answer is in no row: see `docs/components.md`."""


@dataclass(frozen=True, slots=True)
class RowCall:
    """The part of a row that is one answer of one call."""

    call: ModelCall
    """The call, with its source spans."""
    choice: int
    """Which of its answers, from 0."""
    start: int
    """Where the answer begins in the row's `response_ids`, from 0."""
    stop: int
    """Where it ends there; the last token is before it."""
    rewards: tuple[NamedReward, ...]
    """The rewards of the call, the primary one first; none when no reward was given. Its choices share them."""

    @property
    def reward(self) -> float | None:
        """The primary reward of the call."""
        return self.rewards[0].value if self.rewards else None


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One training row. `response_ids`, `mask` and `logprobs` are of one length."""

    prompt_ids: list[int] = field(repr=False)
    """The prompt of the first call."""
    response_ids: list[int] = field(repr=False)
    """The answers, and between two of them what came in between."""
    mask: list[int] = field(repr=False)
    """1 for a token that the model produced, 0 for one that came in between."""
    logprobs: list[float | None] = field(repr=False)
    """The engine's log-probability; None where masked, or not recorded."""
    calls: list[RowCall]
    """The answers that it is made of, in order."""
    began: RowStart = "first_call"
    """Why its first call does not continue another row."""

    @property
    def rewards(self) -> tuple[float | None, ...]:
        """The primary reward of each call, in order."""
        return tuple(part.reward for part in self.calls)

    @property
    def spans(self) -> tuple[Span, ...]:
        """The spans that recorded its calls, in order."""
        return tuple(span for part in self.calls for span in part.call.spans)


@dataclass(frozen=True, slots=True)
class RefusedAnswer:
    """An answer of which no row could be made."""

    call: ModelCall
    """The call, with its source spans."""
    choice: int
    """Which of its answers, from 0."""
    reason: RefusalReason
    """What is wrong with it."""
    detail: str
    """The same in words, with the span's id."""


@dataclass(frozen=True, slots=True)
class Trajectories:
    """What an attempt gives to learn from."""

    rows: tuple[Trajectory, ...]
    """In the order in which they began."""
    refused: tuple[RefusedAnswer, ...]
    """What is in none of them, and why; in the order of the attempt."""
    final_reward: float | None
    """The primary reward of the attempt's last reward span; None when it has none."""
    left_out: tuple[ModelCall, ...] = ()
    """The calls that are in no row because `conversations` or `leave_out` says so."""

    @property
    def lacks_token_ids(self) -> bool:
        """Whether an answer is missing because the engine's tokens were not recorded, or are damaged."""
        return any(refusal.reason in ("no_token_ids", "bad_token_ids") for refusal in self.refused)


class TraceToTrajectories(TraceAdapter[Trajectories]):
    """Makes training rows of the model calls of an attempt.

    Where a prompt begins with exactly the tokens of a row (the prompt of its first call, and all that followed), the
    call continues that row: the rest of the prompt is masked, its answer is not. Elsewhere a new row begins. Of
    several rows that a prompt begins with, the longest is continued, of equal ones the one that got there last, by its
    latest answer. No produced token is trained twice, and none is made from text. Time and memory are linear in the
    tokens.

    `docs/components.md` says what becomes of failed, empty, repeated, parallel and branching calls.

    Args:
        llm_call_match: A regular expression, searched in span names; None for every model call.
        agent_match: A regular expression, searched in the name of the innermost agent around a call; None for any.
        exclude_llm_call_in_reward: Whether calls within the computation of a reward are left out.
        repair_hierarchy: Whether spans that float under the root are first moved to where they belong.
        conversations: `longest` for the conversation with the most calls alone: so an agent's side calls, such as for a
            title, are not trained on. With `all`, each conversation of several agents is.
        leave_out: A regular expression, searched in the instructions (the system message) of calls to leave out.

    Raises:
        ValueError: When one of the three is not a regular expression, or `conversations` is something else.
    """

    def __init__(
        self,
        *,
        llm_call_match: str | None = None,
        agent_match: str | None = None,
        exclude_llm_call_in_reward: bool = True,
        repair_hierarchy: bool = True,
        conversations: Literal["all", "longest"] = "all",
        leave_out: str | None = None,
    ) -> None:
        if conversations not in ("all", "longest"):
            raise ValueError(f"conversations is {conversations!r}; it is 'all' or 'longest'")
        self._conversations = conversations
        self._leave_out = pattern("leave_out", leave_out)
        self._has_told = False
        self._selector = CallSelector(
            repair_hierarchy=repair_hierarchy,
            llm_call_match=llm_call_match,
            agent_match=agent_match,
            exclude_llm_call_in_reward=exclude_llm_call_in_reward,
        )

    def adapt(self, source: Sequence[Span], /) -> Trajectories:
        """Return the rows of an attempt, and the answers that are in none.

        Args:
            source: The spans of one attempt, in any order.

        Raises:
            ValueError: When a span has a reward without a name or a number.
        """
        if not source:
            return Trajectories((), (), None)
        spans = in_order(source)
        found = calls_of([selected.spans for selected in self._selector.select(self._selector.tree(spans))])
        calls = self._chosen(found)
        kept = {call.order for call in calls}
        left_out = tuple(call for call in found if call.order not in kept)
        rewards = match_by_sequence({call.order: call.spans[0] for call in calls}, spans, heeds_clocks=True)
        rows, refused = merge_calls(calls, rewards)
        return Trajectories(tuple(rows), tuple(refused), find_final_reward(spans), left_out)

    def _chosen(self, calls: list[ModelCall]) -> list[ModelCall]:
        chosen = calls
        if (words := self._leave_out) is not None:
            chosen = [call for call in chosen if not words.search(_instructions(call))]
        if self._conversations == "longest":
            chosen = longest_chain(chosen)
        if len(chosen) < len(calls) and not self._has_told:
            self._has_told = True
            logger.warning(
                "lightning.calls_left_out calls=%s of=%s: so many calls of this attempt are in no training row, as the "
                "adapter's conversations and leave_out say; other attempts are not warned of",
                len(calls) - len(chosen),
                len(calls),
            )
        return chosen


def _instructions(call: ModelCall) -> str:
    found = [str(message.get("content")) for message in call.messages if message.get("role") in INSTRUCTIONS]
    return "\n".join(found)


_OWN = "subclass lightning_core.adapter.TraceToTrajectories and override its adapt, or leave the adapter out"


def as_trajectory_adapter(adapter: object) -> TraceToTrajectories:
    """Return an adapter that makes rows of the calls that a given adapter picks.

    A subclass of a triplet adapter is refused: what it changes in its triplets would be lost. One of
    `TraceToTrajectories` is used as it is.

    Args:
        adapter: One that makes trajectories, or a triplet adapter of agentlightning 0.3; None for all calls.

    Raises:
        TypeError: When it is anything else.
    """
    if isinstance(adapter, TraceToTripletBase) and type(adapter) not in (TracerTraceToTriplet, LlmProxyTraceToTriplet):
        raise TypeError(
            f"a {type(adapter).__name__} makes triplets of its own, and training rows are not made of triplets; {_OWN}"
        )
    match adapter:
        case TraceToTrajectories():
            return adapter
        case TracerTraceToTriplet():
            return TraceToTrajectories(
                llm_call_match=adapter.llm_call_match,
                agent_match=adapter.agent_match,
                exclude_llm_call_in_reward=adapter.exclude_llm_call_in_reward,
                repair_hierarchy=adapter.repair_hierarchy,
            )
        case None | LlmProxyTraceToTriplet():
            return TraceToTrajectories()
        case _:
            raise TypeError(
                f"a {type(adapter).__name__} makes no training rows; use the adapter 'trajectory' "
                f"(or 'triplet', with the same options), or {_OWN}"
            )


def merge_calls(
    calls: Sequence[ModelCall], rewards: Mapping[int, tuple[NamedReward, ...]]
) -> tuple[list[Trajectory], list[RefusedAnswer]]:
    """Make rows of calls.

    Args:
        calls: In the order of the attempt.
        rewards: By a call's `order`, its rewards.

    Returns:
        The rows, and the answers that are in none of them.
    """
    merging = _Merging(rewards)
    for call in calls:
        merging.take(call)
    places = {call.order: place for place, call in enumerate(calls)}
    rows = merging.rows[:1]
    for row in merging.rows[1:]:
        first = row.calls[0]
        start = link(first.call, calls[: places[first.call.order]]).start
        rows.append(replace(row, began="same_prompt" if first.choice else start))
    return rows, merging.refused


class _Merging:
    def __init__(self, rewards: Mapping[int, tuple[NamedReward, ...]]) -> None:
        self.rows: list[Trajectory] = []
        self.refused: list[RefusedAnswer] = []
        self._open: OpenRows[Trajectory] = OpenRows()
        self._rewards = rewards

    def take(self, call: ModelCall) -> None:
        if call.error is not None:
            self._refuse(call, 0, "failed", f"it failed: {call.error}")
            return
        for number, choice in enumerate(call.choices):
            if call.prompt_token_ids is None or choice.token_ids is None:
                missing = "the prompt" if call.prompt_token_ids is None else f"choice {number}"
                self._refuse(call, number, "no_token_ids", f"no token ids of {missing} were recorded")
            elif not choice.token_ids:
                self._refuse(call, number, "empty_answer", f"choice {number} has no token")
            elif not self._join(call, number, call.prompt_token_ids, choice.token_ids):
                self._refuse(call, number, "bad_token_ids", "a token id is not an integer")

    def _join(self, call: ModelCall, number: int, prompt: Sequence[int], answer: Sequence[int]) -> bool:
        match = self._open.find(prompt)
        between = prompt[match.length :]
        if not _all_integers(between) or not _all_integers(answer):
            return False
        row = match.row
        if row is None:
            row = Trajectory(list(prompt), [], [], [], [])
            self.rows.append(row)
            self._open.add(match, row, [*prompt[match.shared :], *answer])
        else:
            self._open.extend(match, [*between, *answer])
            row.response_ids.extend(between)
            row.mask.extend([0] * len(between))
            row.logprobs.extend([None] * len(between))
        start = len(row.response_ids)
        row.response_ids.extend(answer)
        row.mask.extend([1] * len(answer))
        row.logprobs.extend(call.choices[number].logprobs or [None] * len(answer))
        row.calls.append(RowCall(call, number, start, len(row.response_ids), self._rewards.get(call.order, ())))
        return True

    def _refuse(self, call: ModelCall, choice: int, reason: RefusalReason, why: str) -> None:
        detail = f"the call of span {call.span_id} is in no row: {why}"
        self.refused.append(RefusedAnswer(call, choice, reason, detail))


def _all_integers(ids: Sequence[int]) -> bool:
    return set(map(type, ids)) <= {int}
