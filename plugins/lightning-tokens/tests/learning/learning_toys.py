"""Rollouts to learn from, made as the store and a tracer leave them."""

from collections.abc import Mapping, Sequence
from typing import Any

from lightning_tokens.learning.options import LearningOptions
from lightning_tokens.learning.outcomes import EndedRollout, read_rollout

from lightning_core.testing.adapter import TraceBuilder
from lightning_core.types import Attempt, AttemptedRollout, RolloutConfig, Span

Call = tuple[list[int], list[int]]
"""The tokens of a prompt and of its answer."""


def options(**changes: Any) -> LearningOptions:
    lengths = {"max_prompt_length": 16, "max_response_length": 32}
    return LearningOptions(**{**lengths, "level": "trajectory", "needs_logprobs": False, **changes})


def two_choices(*rewards: float | None, told: LearningOptions | None = None) -> EndedRollout:
    """Return a rollout whose first call gave the answers 2 and 3 4; it asked once more after the first of them."""
    trace = TraceBuilder()
    trace.call([1], [[2], [3, 4]])
    add_reward(trace, rewards[0])
    for reward in rewards[1:]:
        trace.call([1, 2, 9], [5])
        add_reward(trace, reward)
    return read_rollout(rollout(), trace.spans, options=told or options())


def spans_of(calls: Sequence[Call], rewards: Sequence[float | Mapping[str, float] | None] = ()) -> list[Span]:
    """Return the spans of calls, each followed by its reward where there is one; one more reward comes last."""
    trace = TraceBuilder()
    for place, (prompt, answer) in enumerate(calls):
        trace.call(prompt, answer)
        if place < len(rewards):
            add_reward(trace, rewards[place])
    if len(rewards) > len(calls):
        add_reward(trace, rewards[-1])
    return trace.spans


def add_reward(trace: TraceBuilder, reward: float | Mapping[str, float] | None) -> None:
    if reward is None:
        return
    named = reward if isinstance(reward, Mapping) else {"primary": reward}
    attributes: dict[str, Any] = {}
    for place, (name, value) in enumerate(named.items()):
        attributes[f"agentlightning.reward.{place}.name"] = name
        attributes[f"agentlightning.reward.{place}.value"] = value
    trace.span("agentlightning.annotation", attributes)


def rollout(
    status: str = "succeeded",
    *,
    attempt: str | None = None,
    metadata: dict[str, Any] | None = None,
    rollout_id: str = "ro-1",
    timeout_seconds: float | None = None,
) -> AttemptedRollout:
    return AttemptedRollout(
        rollout_id=rollout_id,
        input="a task",
        start_time=0.0,
        end_time=1.0,
        status=status,
        config=RolloutConfig(timeout_seconds=timeout_seconds),
        attempt=Attempt(
            rollout_id=rollout_id,
            attempt_id="at-1",
            sequence_id=1,
            start_time=0.0,
            end_time=1.0,
            status=attempt or status,
            metadata=metadata,
        ),
    )


RAISED = {"failure": {"type": "ValueError", "message": "the tool is not there"}}
FAULT = {"fault": "its runner was stopped"}


def scored(reward: float | None, *calls: Call, told: LearningOptions | None = None) -> EndedRollout:
    """Return a rollout that succeeded, with its reward after the last call."""
    calls = calls or (([1, 2], [3, 4]),)
    rewards = [None] * (len(calls) - 1) + [reward]
    return read_rollout(rollout(), spans_of(calls, rewards), options=told or options())


def judged(*rewards: float | None, told: LearningOptions | None = None) -> EndedRollout:
    """Return a rollout of one conversation whose every call has a reward, or none."""
    return read_rollout(rollout(), spans_of(conversation(len(rewards)), rewards), options=told or options())


def conversation(turns: int) -> list[Call]:
    """Return calls whose tokens are continuous: two tokens of answer, then one in between."""
    context, calls = [1], []
    for turn in range(turns):
        answer = [10 * turn + 2, 10 * turn + 3]
        calls.append((list(context), answer))
        context += [*answer, 99]
    return calls


def failed(*calls: Call, told: LearningOptions | None = None) -> EndedRollout:
    """Return a rollout whose agent raised after some calls."""
    return read_rollout(rollout("failed", metadata=RAISED), spans_of(calls), options=told or options())


def faulty(told: LearningOptions | None = None) -> EndedRollout:
    """Return a rollout that never got to its end, through no fault of its agent's."""
    return read_rollout(rollout("failed", metadata=FAULT), spans_of(conversation(1)), options=told or options())


def plain(rows: Sequence[Any]) -> list[list[float]]:
    """Return arrays as lists."""
    return [row.tolist() for row in rows]
