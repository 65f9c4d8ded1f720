"""How one rollout went: a reward, a failure or a fault, and its rows."""

from bisect import bisect_left
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from lightning_core.adapter import RowCall, RowStart, Trajectories, genai
from lightning_core.adapter.rewards import began_after
from lightning_core.adapter.trajectory import as_trajectory_adapter
from lightning_core.adapter.tree import in_order
from lightning_core.algorithm.batch import describe_failure
from lightning_core.emitter import NamedReward, find_reward_spans, get_rewards_from_span
from lightning_core.types import AttemptedRollout, Rollout, Span
from lightning_tokens.learning.options import LearningOptions
from lightning_tokens.learning.rows import RolloutRows, answers_in_order, make_rows

End = Literal["scored", "unscored", "failure", "fault"]
"""`scored`: the agent ended and gave a reward. `unscored`: it ended and gave none that counts. `failure`: it raised, or
ran out of its time. `fault`: it did not get to its end for a reason that is not its own; also when it was cancelled."""

LARGEST_REWARD = 1e15
"""A larger one is none: its square, in the 32 bits of a tensor, would be near the end of what they can hold."""


@dataclass(frozen=True, slots=True)
class EndedRollout:
    """What one rollout gives to learn from."""

    rollout_id: str
    end: End
    reward: float | None
    """What it is worth; None when not given. A failure has the value of `on_failure`, where that is a number."""
    cause: str | None
    """Why there is no reward of its own, in one line; None when there is one."""
    made: RolloutRows
    """Its rows; none of a fault, nor of a rollout whose tokens were not all recorded."""
    call_rewards: tuple[float | None, ...] = ()
    """The sum of what came after each of its calls, in order, and before the next one; None for nothing. A call counts
    that has an answer in a row, whatever its length, and once, however many it has."""
    answer_lengths: tuple[int, ...] = ()
    """The tokens of each of its answers, in order."""
    row_starts: tuple[RowStart, ...] = ()
    """Why each row began that its calls merge into."""
    n_left_out: int = 0
    """How many of its calls are in no row because the adapter leaves them out."""
    refusal: str | None = None
    """Why it has no rows although it was run to its end; None when nothing was refused."""
    is_truncated: bool = False
    """Whether its last answer ended at a limit (`length`), or a row of it was cut."""
    penalty: float = 0.0
    """What a long response takes from its reward: 0 or less."""

    @property
    def n_trajectories(self) -> int:
        """How many rows its calls merge into."""
        return len(self.row_starts)

    @property
    def worth(self) -> float | None:
        """The reward that is learned from; None for one that is left out."""
        return None if self.reward is None else self.reward + self.penalty

    @property
    def was_scored(self) -> bool:
        """Whether the agent gave a reward, rather than `on_failure`."""
        return self.end == "scored"


def is_lost(rollout: Rollout) -> bool:
    """Whether a rollout that has ended did not get to its own end: it was cancelled, or faults have ended it."""
    return rollout.status in ("cancelled", "failed") and _end_of(rollout) == "fault"


def read_rollout(
    rollout: Rollout,
    record: Sequence[Span] | str,
    *,
    options: LearningOptions,
    adapter: object = None,
    other_models: Container[str] = (),
) -> EndedRollout:
    """Read how a rollout went.

    Nothing is taken for a zero: a rollout without a reward has none.

    Args:
        rollout: It has ended.
        record: What its last attempt recorded; or why that is not whole, which is a fault.
        options: The level, the lengths, the weights of rewards, and what a failure is worth.
        adapter: The trainer's; None for `TraceToTrajectories()`. See `as_trajectory_adapter`.
        other_models: What agents call models of the proxy that are not learned from. Their calls are left out, as those
            of a grader are.

    Raises:
        TypeError: When no rows can be made with that adapter.
        ValueError: When the rollout has not ended.
    """
    end = _end_of(rollout)
    if end == "fault" or isinstance(record, str):
        why = record if isinstance(record, str) else describe_failure(rollout)
        return EndedRollout(rollout.rollout_id, "fault", None, why, RolloutRows())
    reads = as_trajectory_adapter(adapter)
    spans = [_as_of_a_helper(span) if _model_at_proxy(span) in other_models else span for span in record]
    trajectories, reward_spans = Trajectories((), (), None), list[tuple[Span, Sequence[NamedReward]]]()
    try:
        trajectories = reads.adapt(spans)
        reward_spans = _with_rewards(in_order(spans))
        reward, cause = _final_reward([rewards for _, rewards in reward_spans], options)
    except ValueError as exc:  # a reward without a name or a number: this rollout's fault, not the run's
        reward, cause = None, str(exc)
    if end == "failure":
        reward = None if options.on_failure == "drop" else options.on_failure
        cause = describe_failure(rollout)
    elif reward is None:
        end, cause = "unscored", cause or describe_failure(rollout)
    answers = answers_in_order(trajectories)
    refusal = _refusal(trajectories)
    made = RolloutRows() if refusal else make_rows(trajectories, options=options)
    sums = _sums_by_call(answers, reward_spans, spans, options.reward_weights)
    return EndedRollout(
        rollout_id=rollout.rollout_id,
        end=end,
        reward=reward,
        cause=cause,
        made=made,
        call_rewards=tuple(sums.get(order) for order in dict.fromkeys(part.call.order for part in answers)),
        answer_lengths=tuple(part.stop - part.start for part in answers),
        row_starts=tuple(row.began for row in trajectories.rows),
        n_left_out=len(trajectories.left_out),
        refusal=refusal,
        is_truncated=made.n_cut > 0 or (bool(answers) and _ended_at_limit(answers[-1])),
        penalty=_penalty(made.longest, options) if end == "scored" else 0.0,
    )


def overlong_punishment(length: int, *, max_length: int, buffer: int) -> float:
    """Return what a response's length takes from its reward: equation 13 of DAPO (Yu et al. 2025, arXiv 2503.14476).

    Args:
        length: The response's, in tokens.
        max_length: From here on a response loses 1.
        buffer: Over so many tokens before that, the loss grows from 0.
    """
    return -min(max(length - (max_length - buffer), 0) / buffer, 1.0)


def combined(rewards: Sequence[NamedReward], weights: Mapping[str, float]) -> float | None:
    """Return the one number of several rewards; None when there is none.

    There is none, too, when a weighted one is missing, or when it cannot be learned from: it is not finite, or beyond
    `LARGEST_REWARD`.
    """
    values = {reward.name: reward.value for reward in rewards}
    if not rewards or not weights.keys() <= values.keys():
        return None
    value = sum(weight * values[name] for name, weight in weights.items()) if weights else rewards[0].value
    return value if abs(value) <= LARGEST_REWARD else None


def _end_of(rollout: Rollout) -> End:
    if rollout.status == "succeeded":
        return "scored"
    if rollout.status == "cancelled":
        return "fault"
    if rollout.status != "failed":
        raise ValueError(f"rollout {rollout.rollout_id} is {rollout.status!r}; only one that has ended can be read")
    attempt = rollout.attempt if isinstance(rollout, AttemptedRollout) else None
    if attempt is None:
        return "fault"  # no agent has seen it
    metadata: Mapping[str, Any] = attempt.metadata or {}
    return "fault" if "fault" in metadata and "failure" not in metadata else "failure"


def _model_at_proxy(span: Span) -> str:
    """Return the model of the proxy that answered, by the name that agents say; empty for what it has not recorded."""
    is_by_proxy = span.resource.attributes.get("service.name") == genai.PROXY_SERVICE
    return str(span.attributes.get(genai.REQUEST_MODEL, "")) if is_by_proxy else ""


def _as_of_a_helper(span: Span) -> Span:
    """Return the span of a call that is not training data, whatever else has recorded it."""
    return span.model_copy(update={"attributes": {genai.PURPOSE: "helper", **span.attributes}})


def _with_rewards(spans: Sequence[Span]) -> list[tuple[Span, Sequence[NamedReward]]]:
    """Return the spans whose rewards count, in order, with them."""
    return [(span, get_rewards_from_span(span)) for span in find_reward_spans(spans)]


def _final_reward(series: Sequence[Sequence[NamedReward]], options: LearningOptions) -> tuple[float | None, str | None]:
    """Return what the last reward says, and why it does not count, if so."""
    for rewards in series if options.credit != "final" else series[-1:]:
        if (value := combined(rewards, options.reward_weights)) is None and not _missing(rewards, options):
            given = ", ".join(f"{reward.name} {reward.value:g}" for reward in rewards)
            return None, f"a reward is {given}, which is not a number to learn from; finite ones up to 1e15 are"
    if not series:
        return None, None
    if missing := _missing(series[-1], options):
        given = ", ".join(repr(reward.name) for reward in series[-1])
        return None, f"the last reward has no {', '.join(missing)}, which has a weight; it has {given}"
    return value, None


def _missing(rewards: Sequence[NamedReward], options: LearningOptions) -> list[str]:
    names = {reward.name for reward in rewards}
    return [repr(name) for name in options.reward_weights if name not in names]


def _sums_by_call(
    answers: Sequence[RowCall],
    reward_spans: Sequence[tuple[Span, Sequence[NamedReward]]],
    spans: Sequence[Span],
    weights: Mapping[str, float],
) -> dict[int, float]:
    """Give each reward to the latest call before it that has an answer in a row, and sum them.

    What comes after a call that failed, or said nothing, is so of the answer before it: no reward is lost.

    A store numbers a call when it begins, and a reward when it gets it, a moment after it was given. So a call may have
    been numbered first although it began later; its clock tells.

    Returns:
        By a call's `order`, the sum; nothing for a call without a reward.
    """
    numbered = any(span.sequence_id for span in spans)
    position = {id(span): place for place, span in enumerate(in_order(spans))}

    def place(span: Span) -> int:
        return span.sequence_id if numbered else position[id(span)]

    of_answers = {part.call.order: part.call for part in answers}
    calls = sorted(of_answers.values(), key=lambda call: place(call.spans[0]))
    places = [place(call.spans[0]) for call in calls]
    sums: dict[int, float] = {}
    for span, rewards in reward_spans:
        before = bisect_left(places, place(span)) - 1
        while before >= 0 and began_after(calls[before].spans[0], span):
            before -= 1
        if before >= 0 and (value := combined(rewards, weights)) is not None:
            order = calls[before].order
            sums[order] = sums.get(order, 0.0) + value
    return sums


def _ended_at_limit(part: RowCall) -> bool:
    return part.call.choices[part.choice].finish_reason == "length"


def _penalty(longest: int, options: LearningOptions) -> float:
    if not options.overlong_buffer:
        return 0.0
    punishment = overlong_punishment(longest, max_length=options.max_response_length, buffer=options.overlong_buffer)
    return options.overlong_penalty * punishment


def _refusal(trajectories: Trajectories) -> str | None:
    if not trajectories.lacks_token_ids:
        return None
    reasons = [refused for refused in trajectories.refused if refused.reason in ("no_token_ids", "bad_token_ids")]
    return f"{len(reasons)} of its answers lack the engine's tokens; the first: {reasons[0].detail}"
