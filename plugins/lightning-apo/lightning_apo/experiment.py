"""What the critic reads of one rollout."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lightning_core.adapter import TraceToMessages
from lightning_core.algorithm import RolloutOutcome
from lightning_core.emitter import find_reward_spans, get_message_value, get_rewards_from_span
from lightning_core.semconv import AGL_OPERATION, LightningSpanAttributes
from lightning_core.types import Span

_NAME = LightningSpanAttributes.OPERATION_NAME.value
_INPUT = LightningSpanAttributes.OPERATION_INPUT.value
_OUTPUT = LightningSpanAttributes.OPERATION_OUTPUT.value


def turns_of(spans: Sequence[Span], adapter: TraceToMessages) -> list[str]:
    """Say what an agent and its models said to each other.

    What a call repeats of the call before it is left out.
    """
    turns: list[str] = []
    history: list[dict[str, Any]] = []
    for conversation in adapter.adapt(spans):
        messages = conversation["messages"]
        goes_on = bool(history) and messages[: len(history)] == history
        if turns and not goes_on:
            turns.append("--- another conversation ---")
        turns.extend(turn for message in messages[len(history) if goes_on else 0 :] for turn in _turns(message))
        history = messages
    return turns


def operations_of(spans: Sequence[Span]) -> list[str]:
    """Say which operations an agent did, with what went in and came out."""
    return [_operation(span) for span in spans if span.name == AGL_OPERATION or _NAME in span.attributes]


def _operation(span: Span) -> str:
    given = ", ".join(f"{name}={value}" for name, value in _below(_INPUT, span.attributes))
    outputs = [str(value) if not name else f"{name}={value}" for name, value in _below(_OUTPUT, span.attributes)]
    text = f"{span.attributes.get(_NAME, span.name)}({given})"
    if span.status.status_code == "ERROR":
        return f"{text} failed: {span.status.description or 'no reason given'}"
    return f"{text} gave {', '.join(outputs)}" if outputs else text


def _below(prefix: str, attributes: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in attributes.items():
        if name == prefix or name.startswith(f"{prefix}."):
            yield name.removeprefix(prefix).removeprefix(".").removeprefix("args."), value


def _turns(message: Mapping[str, Any]) -> Iterator[str]:
    role = str(message.get("role", "unknown"))
    if text := _text(message.get("content")):
        yield f"{role}: {text}"
    for call in message.get("tool_calls") or ():
        function = call.get("function") or {}
        yield f"{role} calls the tool {function.get('name')} with {function.get('arguments')}"


def _text(content: Any) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    if isinstance(content, list):
        return "\n".join(_part(part) for part in content)
    return json.dumps(content, ensure_ascii=False, default=repr)


def _part(part: Any) -> str:
    if isinstance(part, Mapping):
        text = part.get("text")
        return text if isinstance(text, str) else f"[{part.get('type', 'something that is not text')}]"
    return str(part)


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
    try:
        spans = find_reward_spans(outcome.spans) if outcome.reward is not None else []
    except ValueError:  # an earlier one is broken; the last one counts all the same
        return {}
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
