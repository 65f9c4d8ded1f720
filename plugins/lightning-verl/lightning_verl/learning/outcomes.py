"""How one rollout went: a reward, a failure or a fault, and its rows."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from lightning_core.adapter import (
    LlmProxyTraceToTriplet,
    TracerTraceToTriplet,
    TraceToTrajectories,
    Trajectories,
)
from lightning_core.adapter.order import in_order
from lightning_core.algorithm.batch import describe_failure
from lightning_core.emitter import NamedReward, get_rewards_from_span
from lightning_core.types import AttemptedRollout, Rollout, Span
from lightning_verl.learning.options import LearningOptions
from lightning_verl.learning.rows import RolloutRows, answers_in_order, make_rows

End = Literal["scored", "unscored", "failure", "fault"]
"""`scored`: the agent ended and gave a reward. `unscored`: it ended and gave none that counts. `failure`: it raised, or
ran out of its time. `fault`: it did not get to its end for a reason that is not its own; also when it was cancelled."""


@dataclass(frozen=True, slots=True)
class EndedRollout:
    """What one rollout gives to learn from."""

    rollout_id: str
    end: End
    reward: float | None
    """What it is worth; None when nobody said. A failure has the value of `on_failure`, where that is a number."""
    cause: str | None
    """Why there is no reward of its own, in one line; None when there is one."""
    made: RolloutRows
    """Its rows; none of a fault, nor of a rollout whose tokens were not all recorded."""
    answer_rewards: tuple[float | None, ...] = ()
    """What came right after each of its answers, in order; None for nothing."""
    answer_lengths: tuple[int, ...] = ()
    """The tokens of each of its answers, in order."""
    n_trajectories: int = 0
    """How many rows its calls merge into; more than one where their tokens are not continuous."""
    refusal: str | None = None
    """Why it has no rows although it was run to its end; None when nothing was refused."""

    @property
    def was_scored(self) -> bool:
        """Whether the agent gave a reward, rather than `on_failure`."""
        return self.end == "scored"


def read_rollout(
    rollout: Rollout, spans: Sequence[Span], *, options: LearningOptions, adapter: object = None
) -> EndedRollout:
    """Read how a rollout went.

    Nothing is taken for a zero: a rollout without a reward has none.

    Args:
        rollout: It has ended.
        spans: What its last attempt recorded.
        options: The level, the lengths, the weights of rewards, and what a failure is worth.
        adapter: The trainer's; None for `TraceToTrajectories()`. See `as_trajectory_adapter`.

    Raises:
        TypeError: When no rows can be made with that adapter.
        ValueError: When the rollout has not ended.
    """
    end = _end_of(rollout)
    if end == "fault":
        return EndedRollout(rollout.rollout_id, end, None, describe_failure(rollout), RolloutRows())
    reads = as_trajectory_adapter(adapter)
    try:
        trajectories = reads.adapt(spans)
        reward, cause = _final_reward(in_order(spans), options.reward_weights)
    except ValueError as exc:  # a reward without a name or a number: this rollout's fault, not the run's
        trajectories, reward, cause = Trajectories((), (), None), None, str(exc)
    if end == "failure":
        reward = None if options.on_failure == "drop" else options.on_failure
        cause = describe_failure(rollout)
    elif reward is None:
        end, cause = "unscored", cause or describe_failure(rollout)
    answers = answers_in_order(trajectories)
    refusal = _refusal(trajectories)
    return EndedRollout(
        rollout_id=rollout.rollout_id,
        end=end,
        reward=reward,
        cause=cause,
        made=RolloutRows() if refusal else make_rows(trajectories, options=options),
        answer_rewards=tuple(combined(part.rewards, options.reward_weights) for part in answers),
        answer_lengths=tuple(part.stop - part.start for part in answers),
        n_trajectories=len(trajectories.rows),
        refusal=refusal,
    )


def as_trajectory_adapter(adapter: object) -> TraceToTrajectories:
    """Return an adapter that makes rows of the calls that a given adapter picks.

    Args:
        adapter: One that makes trajectories, or a triplet adapter of agentlightning 0.3; None for all calls.

    Raises:
        TypeError: When it is anything else.
    """
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
                f"a {type(adapter).__name__} makes no training rows; "
                "use the adapter 'trajectory' (or 'triplet', with the same options), or leave it out"
            )


def combined(rewards: Sequence[NamedReward], weights: Mapping[str, float]) -> float | None:
    """Return the one number of several rewards; None when there is none, or a weighted one is missing."""
    if not rewards or not weights:
        return rewards[0].value if rewards else None
    values = {reward.name: reward.value for reward in rewards}
    if not weights.keys() <= values.keys():
        return None
    return math.fsum(weight * values[name] for name, weight in weights.items())


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
    told: Mapping[str, Any] = attempt.metadata or {}
    return "fault" if "fault" in told and "failure" not in told else "failure"


def _final_reward(spans: Sequence[Span], weights: Mapping[str, float]) -> tuple[float | None, str | None]:
    """Return what the last reward says, and why it does not count, if so."""
    for span in reversed(spans):
        rewards = get_rewards_from_span(span)
        if rewards:
            value = combined(rewards, weights)
            missing = ", ".join(repr(name) for name in weights if name not in {reward.name for reward in rewards})
            given = ", ".join(repr(reward.name) for reward in rewards)
            return value, f"the last reward has no {missing}, which has a weight; it has {given}" if missing else None
    return None, None


def _refusal(trajectories: Trajectories) -> str | None:
    if not trajectories.lacks_token_ids:
        return None
    reasons = [refused for refused in trajectories.refused if refused.reason in ("no_token_ids", "bad_token_ids")]
    return f"{len(reasons)} of its answers lack the engine's tokens; the first: {reasons[0].detail}"
