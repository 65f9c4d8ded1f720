"""What the critic is told of one rollout."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lightning_apo.turns import operations_of, turns_of
from lightning_core.adapter import TraceToMessages
from lightning_core.algorithm import RolloutOutcome
from lightning_core.emitter import find_reward_spans, get_message_value, get_rewards_from_span
from lightning_core.types import Span

MAX_CHARACTERS = 4000
"""What is longer than this, a task or a single message, has its middle left out."""

MAX_MESSAGES = 40
"""Where there are more than this, of one kind in one run, those in the middle are left out."""


@dataclass(frozen=True, slots=True)
class Experiment:
    """One run of the agent with a prompt, in words."""

    task: str
    """The rollout's input; as JSON unless it is a string."""
    turns: Sequence[str]
    """What the agent and its models said to each other, tool calls and what tools answered included, in order."""
    operations: Sequence[str]
    """The operations (`@operation`) of the run, with what went in and what came out, in order."""
    messages: Sequence[str]
    """What was said with `emit_message`, in order."""
    reward: float | None
    """None when the run failed."""
    failure: str | None
    """Why there is no reward, in one line; None when there is one."""
    rewards: Mapping[str, float] = field(default_factory=dict)
    """All numbers of the final reward by name, where there are several."""

    @classmethod
    def from_outcome(cls, outcome: RolloutOutcome, adapter: TraceToMessages | None = None) -> "Experiment":
        """Describe a rollout that ended.

        Args:
            outcome: How it ended.
            adapter: Reads the model calls from its spans.
        """
        messages = [message for span in outcome.spans if (message := _message(span)) is not None]
        return cls(
            task=_shortened(_in_words(outcome.rollout.input)),
            turns=_bounded(turns_of(outcome.spans, adapter or TraceToMessages())),
            operations=_bounded(operations_of(outcome.spans)),
            messages=_bounded(messages),
            reward=outcome.reward,
            failure=outcome.failure,
            rewards=_named_rewards(outcome),
        )


def _named_rewards(outcome: RolloutOutcome) -> dict[str, float]:
    spans = find_reward_spans(outcome.spans) if outcome.reward is not None else []
    rewards = get_rewards_from_span(spans[-1]) if spans else []
    return {reward.name: reward.value for reward in rewards} if len(rewards) > 1 else {}


def _message(span: Span) -> str | None:
    try:
        return get_message_value(span)
    except TypeError as exc:  # a span that some other program made; the run is still worth showing
        return f"(unreadable: {exc})"


def _in_words(task: Any) -> str:
    if isinstance(task, str):
        return task
    try:
        return json.dumps(task, ensure_ascii=False, indent=2, default=repr)
    except (TypeError, ValueError):  # keys that JSON does not have, or a value that holds itself
        return repr(task)


def _bounded(texts: Sequence[str]) -> list[str]:
    left_out, half = len(texts) - MAX_MESSAGES, MAX_MESSAGES // 2
    if left_out <= 0:
        return [_shortened(text) for text in texts]
    kept = [_shortened(text) for text in (*texts[:half], *texts[-half:])]
    return [*kept[:half], f"[... {left_out} left out ...]", *kept[half:]]


def _shortened(text: str) -> str:
    left_out = len(text) - MAX_CHARACTERS
    if left_out <= 0:
        return text
    half = MAX_CHARACTERS // 2
    return f"{text[:half]}\n[... {left_out} characters left out ...]\n{text[-half:]}"
