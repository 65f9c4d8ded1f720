"""Which reward is of which model call."""

import heapq
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from lightning_core.adapter.tree import TraceTree, in_order
from lightning_core.emitter import NamedReward, find_reward_spans, get_rewards_from_span
from lightning_core.semconv import AGL_OPERATION, AGL_REWARD, LightningSpanAttributes
from lightning_core.types import Span

_LATE_SECONDS = 0.25

Rewards = tuple[NamedReward, ...]
"""The rewards of one span, the primary one first."""


class RewardMatchPolicy(StrEnum):
    """How a reward finds its call. Each reward is of one call, and each call has one reward at most.

    The latest call is the one that began last.
    """

    FIRST_SIBLING = "first_sibling"
    """It is of the latest call beside it, under the same parent, that had ended and has no reward yet."""

    FIRST_OCCURRENCE = "first_occurrence"
    """It is of the latest call of the whole attempt that had ended and has no reward yet."""

    @classmethod
    def _missing_(cls, value: object) -> "RewardMatchPolicy":
        names = ", ".join(repr(policy.value) for policy in cls)
        raise ValueError(f"reward_match={value!r} is not known; it is one of {names}")


class Moment(NamedTuple):
    """One thing that happened: a call, a reward, or both. `key` tells calls apart."""

    start: float
    end: float
    key: int | None = None
    rewards: Rewards = ()


def match_in_turn(moments: Iterable[Moment]) -> dict[int, Rewards]:
    """Give each reward to the latest call before it that had ended and has none yet.

    Args:
        moments: In any order; of those that began at the same time, the order given counts.

    Returns:
        The key of each call that has a reward, and the reward. Takes time n log n.
    """
    running: list[tuple[float, int, int]] = []
    ended: list[tuple[int, int]] = []
    matched: dict[int, Rewards] = {}
    for place, moment in enumerate(sorted(moments, key=lambda moment: moment.start)):
        if moment.key is not None:
            heapq.heappush(running, (moment.end, place, moment.key))
        if moment.rewards:
            while running and running[0][0] <= moment.start:
                _, began, key = heapq.heappop(running)
                heapq.heappush(ended, (-began, key))
            if ended:
                matched[heapq.heappop(ended)[1]] = moment.rewards
    return matched


def match_by_sequence(
    calls: Mapping[int, Span], spans: Sequence[Span], *, heeds_clocks: bool = False
) -> dict[int, Rewards]:
    """Give each reward to the latest call with a smaller `sequence_id` that has none yet.

    Where no span has been numbered by a store, their order counts instead.

    Args:
        calls: By key, the span that says where a call stands; one of `spans`.
        spans: The spans of the attempt, in its order.
        heeds_clocks: Whether a call that `began_after` the reward is none before it, although it was numbered first.

    Returns:
        The key of each call that has a reward, and the reward.
    """
    numbered = any(span.sequence_id for span in spans)
    place = {id(span): span.sequence_id if numbered else position for position, span in enumerate(spans)}
    moments = [Moment(place[id(span)], place[id(span)] + 1, key) for key, span in calls.items()]
    ordered = sorted(calls.values(), key=lambda span: place[id(span)])
    places = [place[id(span)] for span in ordered]
    for span in find_reward_spans(spans):
        at, before = place[id(span)], bisect_left(places, place[id(span)])
        while heeds_clocks and before > 0 and began_after(ordered[before - 1], span):
            before -= 1
            at = places[before]
        moments.append(Moment(at, at, rewards=rewards_of(span)))
    # A call comes before a reward of the same place, which is not its own: it has not ended yet.
    return match_in_turn(moments)


def began_after(call: Span, reward: Span) -> bool:
    """Whether a call began after a reward was given, and the store only numbered them the other way round.

    It numbers a call when that begins, and a reward when it gets it, a moment later. Where it is
    more than a moment, two clocks disagree; then the numbers decide.
    """
    if call.start_time is None or reward.end_time is None:
        return False
    return 0.0 < call.start_time - reward.end_time <= _LATE_SECONDS


def match_in_tree(policy: RewardMatchPolicy, tree: TraceTree, calls: Mapping[int, int]) -> dict[int, Rewards]:
    """Give each reward to a call, by times and, for `FIRST_SIBLING`, by parents.

    Where a call or a reward has no times, the order of the spans counts instead, for all of them.

    Args:
        policy: How a reward finds its call.
        tree: The attempt's spans.
        calls: For `id()` of the node of each call, the call's key.

    Returns:
        The key of each call that has a reward, and the reward.
    """
    nodes = tree.traverse()
    rewards_by_span = {id(span): rewards_of(span) for span in find_reward_spans([node.span for node in nodes])}
    events = [(node, calls.get(id(node)), rewards_by_span.get(id(node.span), ())) for node in nodes]
    events = [(node, key, rewards) for node, key, rewards in events if key is not None or rewards]
    times = _times([node for node, _, _ in events])
    moments = {
        id(node): Moment(*times[place], key=key, rewards=rewards) for place, (node, key, rewards) in enumerate(events)
    }
    if policy is RewardMatchPolicy.FIRST_OCCURRENCE:
        return match_in_turn(moments.values())
    matched: dict[int, Rewards] = {}
    for node in nodes:
        # A call is in one list of children only, so no two of these are about the same call.
        matched |= match_in_turn(moments[id(child)] for child in node.children if id(child) in moments)
    return matched


def _times(nodes: Sequence[TraceTree]) -> list[tuple[float, float]]:
    """Return when each began and ended, by the clock or, where that is not known of all, by the attempt's order."""
    known = [(node.start_time, node.end_time) for node in nodes]
    times = [(start, end) for start, end in known if start is not None and end is not None]
    if len(times) == len(nodes):
        return times
    turn = {id(span): float(place) for place, span in enumerate(in_order([node.span for node in nodes]))}
    return [(turn[id(node.span)], turn[id(node.span)]) for node in nodes]


def rewards_of(span: Span) -> Rewards:
    """Read the rewards of a span; none when it is not a reward span."""
    return tuple(get_rewards_from_span(span))


def is_reward_computation(span: Span) -> bool:
    """Tell whether a span is a reward, or lies around the computation of one."""
    if span.name == AGL_OPERATION:
        named = span.attributes.get(LightningSpanAttributes.OPERATION_NAME.value)
        if named == AGL_REWARD:
            return True
    return bool(rewards_of(span))
