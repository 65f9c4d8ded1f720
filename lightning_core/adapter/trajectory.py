"""From spans to training rows: consecutive calls become one row where the engine's tokens are exactly continuous."""

import logging
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from lightning_core.adapter.base import TraceAdapter
from lightning_core.adapter.calls import ModelCall, calls_of
from lightning_core.adapter.chains import INSTRUCTIONS, Conversations, RowStart
from lightning_core.adapter.rewards import match_by_sequence
from lightning_core.adapter.selection import CallSelector, pattern
from lightning_core.adapter.tree import in_order
from lightning_core.adapter.triplet import LlmProxyTraceToTriplet, TracerTraceToTriplet
from lightning_core.emitter import NamedReward, find_final_reward
from lightning_core.types import Span

logger = logging.getLogger(__name__)

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
    """The calls that are in no row because `leave_out` says so."""

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
    tokens, but for a look at what was said before for each row.

    `docs/components.md` says what becomes of failed, empty, repeated, parallel and branching calls.

    Args:
        llm_call_match: A regular expression, searched in span names; None for every model call.
        agent_match: A regular expression, searched in the name of the innermost agent around a call; None for any.
        exclude_llm_call_in_reward: Whether calls within the computation of a reward are left out.
        repair_hierarchy: Whether spans that float under the root are first moved to where they belong.
        leave_out: A regular expression, searched in the instructions (the system message) of calls to leave out: an
            agent's side calls, such as for a title.

    Raises:
        ValueError: When one of the three is not a regular expression.
    """

    def __init__(
        self,
        *,
        llm_call_match: str | None = None,
        agent_match: str | None = None,
        exclude_llm_call_in_reward: bool = True,
        repair_hierarchy: bool = True,
        leave_out: str | None = None,
    ) -> None:
        self._leave_out = pattern("leave_out", leave_out)
        self._has_warned = False
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
        if (words := self._leave_out) is None:
            return calls
        chosen = [call for call in calls if not words.search(_instructions(call))]
        if len(chosen) < len(calls) and not self._has_warned:
            self._has_warned = True
            logger.warning(
                "lightning.calls_left_out calls=%s of=%s: so many calls of this attempt are in no training row, as the "
                "adapter's leave_out says; other attempts are not warned of",
                len(calls) - len(chosen),
                len(calls),
            )
        return chosen


def _instructions(call: ModelCall) -> str:
    texts = [str(message.get("content")) for message in call.messages if message.get("role") in INSTRUCTIONS]
    return "\n".join(texts)


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
    if isinstance(adapter, TraceToTrajectories):
        return adapter
    if adapter is None or type(adapter) is LlmProxyTraceToTriplet:
        return TraceToTrajectories()
    if type(adapter) is TracerTraceToTriplet:
        return TraceToTrajectories(
            llm_call_match=adapter.llm_call_match,
            agent_match=adapter.agent_match,
            exclude_llm_call_in_reward=adapter.exclude_llm_call_in_reward,
            repair_hierarchy=adapter.repair_hierarchy,
        )
    raise TypeError(
        f"a {type(adapter).__name__} makes no training rows, and they are not made of triplets; use the adapter "
        f"'trajectory' (or 'triplet', with the same options), or {_OWN}"
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
    rows = merging.rows[:1]
    if len(merging.rows) > 1:
        starts = _starts(calls, merging)
        for row in merging.rows[1:]:
            first = row.calls[0]
            rows.append(replace(row, began="same_prompt" if first.choice else starts[first.call.order]))
    return rows, merging.refused


def _starts(calls: Sequence[ModelCall], merging: "_Merging") -> dict[int, RowStart]:
    """Say why a row begins with a call, by its order, for each with which one does."""
    firsts = {row.calls[0].call.order for row in merging.rows}
    conversations, starts = Conversations(), dict[int, RowStart]()
    for call in calls:
        if call.order in firsts:
            starts[call.order] = conversations.start(call, merging.before.get(call.order))
        conversations.add(call)
    return starts


class _Merging:
    """Makes rows of calls, one after the other."""

    def __init__(self, rewards: Mapping[int, tuple[NamedReward, ...]]) -> None:
        self.rows: list[Trajectory] = []
        self.refused: list[RefusedAnswer] = []
        self.before: dict[int, ModelCall] = {}
        """By a call's `order`, the one whose tokens its prompt begins with; the longest one."""
        self._rewards = rewards
        self._lengths: list[int] = []
        """How many tokens rows had after a call, ascending."""
        self._by_end: dict[tuple[int, ...], list[tuple[Trajectory, RowCall]]] = {}
        """The rows after each call, by their length then and their last tokens; the latest at the end."""

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

    def _join(self, call: ModelCall, number: int, given: Sequence[int], answer: Sequence[int]) -> bool:
        prompt = given if isinstance(given, list) else list(given)
        try:
            row, before = self._longest_beginning(prompt)
        except TypeError:  # a list or a mapping, by which nothing can be found
            return False
        length = 0 if row is None else _length(row)
        between = prompt[length:]
        if not _all_integers(between) or not _all_integers(answer):
            return False
        if before is not None:
            self.before.setdefault(call.order, before)
        if row is None:
            row = Trajectory(prompt.copy(), [], [], [], [])
            self.rows.append(row)
        else:
            row.response_ids.extend(between)
            row.mask.extend([0] * len(between))
            row.logprobs.extend([None] * len(between))
        start = len(row.response_ids)
        row.response_ids.extend(answer)
        row.mask.extend([1] * len(answer))
        row.logprobs.extend(call.choices[number].logprobs or [None] * len(answer))
        part = RowCall(call, number, start, len(row.response_ids), self._rewards.get(call.order, ()))
        row.calls.append(part)
        length, tail = _length(row), [*row.prompt_ids[-_TAIL:], *row.response_ids[-_TAIL:]][-_TAIL:]
        place = bisect_left(self._lengths, length)
        if self._lengths[place : place + 1] != [length]:
            self._lengths.insert(place, length)
        self._by_end.setdefault((length, *tail), []).append((row, part))
        return True

    def _longest_beginning(self, prompt: list[int]) -> tuple[Trajectory | None, ModelCall | None]:
        """Return the longest row that a prompt begins with, of equal ones that which got there last, and its last call.

        Where each of them went on otherwise, that is no row, and the call after which the longest one did.
        """
        branched: ModelCall | None = None
        for place in range(bisect_right(self._lengths, len(prompt)) - 1, -1, -1):
            length = self._lengths[place]
            for row, part in reversed(self._by_end.get((length, *prompt[max(0, length - _TAIL) : length]), ())):
                start, is_open = len(row.prompt_ids), row.calls[-1] is part
                if not is_open and branched is not None:
                    continue
                known = row.response_ids if is_open else row.response_ids[: part.stop]
                if prompt[start:length] == known and prompt[:start] == row.prompt_ids:
                    if is_open:
                        return row, part.call
                    branched = part.call
        return None, branched

    def _refuse(self, call: ModelCall, choice: int, reason: RefusalReason, why: str) -> None:
        detail = f"the call of span {call.span_id} is in no row: {why}"
        self.refused.append(RefusedAnswer(call, choice, reason, detail))


_TAIL = 16
"""By so many of their last tokens rows are found."""


def _length(row: Trajectory) -> int:
    return len(row.prompt_ids) + len(row.response_ids)


def _all_integers(ids: Sequence[int]) -> bool:
    return set(map(type, ids)) <= {int}
