"""What the critic is told of one rollout."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lightning_core.algorithm import RolloutOutcome
from lightning_core.emitter import get_message_value
from lightning_core.types import Span

MAX_CHARACTERS = 4000
"""What is longer than this, a task or a single message, has its middle left out."""


@dataclass(frozen=True, slots=True)
class Experiment:
    """One run of the agent with a prompt, in words."""

    task: str
    """The rollout's input; as JSON unless it is a string."""
    messages: Sequence[str]
    """What was said with `emit_message`, in order."""
    reward: float | None
    """None when the run failed."""
    failure: str | None
    """Why there is no reward, in one line; None when there is one."""

    @classmethod
    def from_outcome(cls, outcome: RolloutOutcome) -> "Experiment":
        """Describe a rollout that ended."""
        messages = [message for span in outcome.spans if (message := _message(span)) is not None]
        return cls(
            task=_shortened(_in_words(outcome.rollout.input)),
            messages=[_shortened(message) for message in messages],
            reward=outcome.reward,
            failure=outcome.failure,
        )


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


def _shortened(text: str) -> str:
    left_out = len(text) - MAX_CHARACTERS
    if left_out <= 0:
        return text
    half = MAX_CHARACTERS // 2
    return f"{text[:half]}\n[... {left_out} characters left out ...]\n{text[-half:]}"
