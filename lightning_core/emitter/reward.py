"""Rewards: numbers with names, the first of which is the primary one."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, TypeVar

from lightning_core.emitter.emission import emit_span
from lightning_core.emitter.links import SpanLike, listed
from lightning_core.reported import is_late, is_reported
from lightning_core.semconv import AGL_ANNOTATION, LightningSpanAttributes, RewardAttributes
from lightning_core.types import SpanCoreFields

_AGENTOPS_OUTPUTS = ("agentops.task.output", "agentops.entity.output")
"""Where AgentOps puts what a decorated reward function gave: `{"type": "reward", "value": 0.5}`, mostly as JSON."""

_ANNOTATION = "reward"
"""The attribute of an annotation that was the reward in agentlightning 0.2."""


def old_reward(span: SpanLike) -> Any:
    """Return what a span of those times has as its reward, number or not; None when it has none."""
    attributes = span.attributes or {}
    for name in _AGENTOPS_OUTPUTS:
        output = attributes.get(name)
        if isinstance(output, str) and '"reward"' in output:
            try:
                output = json.loads(output)
            except ValueError:
                # Any function's output may be there; this is a text that has the word in it.
                continue
        if isinstance(output, Mapping) and output.get("type") == "reward":
            return output.get("value")
    return attributes.get(_ANNOTATION) if span.name == AGL_ANNOTATION else None


SpanT = TypeVar("SpanT", bound=SpanLike)

_PREFIX = LightningSpanAttributes.REWARD.value
_NAME = RewardAttributes.REWARD_NAME.value
_VALUE = RewardAttributes.REWARD_VALUE.value
_FIRST_NAME = f"{_PREFIX}.0.{_NAME}"
_FIRST_VALUE = f"{_PREFIX}.0.{_VALUE}"
_SINGLE_REWARD_NAME = "primary"


@dataclass(frozen=True, slots=True)
class NamedReward:
    """One number that says how well a rollout, or a part of it, went."""

    name: str
    """What it measures; `primary` by default."""
    value: float
    """More is better."""


def emit_reward(
    reward: float | Mapping[str, float],
    *,
    primary_key: str | None = None,
    attributes: Mapping[str, Any] | None = None,
    propagate: bool = True,
) -> SpanCoreFields:
    """Record how well it went, as a span.

    Args:
        reward: A number, or several by name. Booleans and integers become floats.
        primary_key: Which of several is the primary one; None for the first.
        attributes: More attributes of the span; nested ones are flattened with dots.
        propagate: False to make the span without recording it; then no tracer is needed.

    Returns:
        The span, without an identity.

    Raises:
        NoActiveTracer: Where no tracer is active.
        TypeError: When a reward is not a number, or its name not a string.
        ValueError: When a reward is not finite, when there is none, when `primary_key` names none of them, or when
            `attributes` holds something that no attribute can be.
    """
    own: dict[str, Any] = {}
    for index, named in enumerate(_named_rewards(reward, primary_key)):
        own[f"{_PREFIX}.{index}.{_NAME}"] = named.name
        own[f"{_PREFIX}.{index}.{_VALUE}"] = named.value
    return emit_span(AGL_ANNOTATION, own, attributes, reserved=_PREFIX, propagate=propagate, emitter="emit_reward")


def get_rewards_from_span(span: SpanLike) -> list[NamedReward]:
    """Read all rewards of a span; those of agentlightning before 0.3, AgentOps's among them, have one each.

    Returns:
        The rewards, the primary one first; none when it is not a reward span.

    Raises:
        ValueError: When the span has a reward without a name or a number.
    """
    attributes = span.attributes or {}
    rewards: list[NamedReward] = []
    # Most spans are not rewards, and all of them are checked.
    is_listed = _FIRST_NAME in attributes or _FIRST_VALUE in attributes
    for entry in listed(attributes, _PREFIX, _NAME, _VALUE) if is_listed else ():
        name, value = attributes.get(f"{entry}.{_NAME}"), attributes.get(f"{entry}.{_VALUE}")
        if not isinstance(name, str) or not isinstance(value, (int, float)):
            raise ValueError(
                f"span {span.name!r} has a broken reward at {entry!r}: name {name!r}, value {value!r}; "
                "a reward needs a str and a number"
            )
        rewards.append(NamedReward(name, float(value)))
    if rewards:
        return rewards
    value = old_reward(span)
    if value is None:
        return []
    if not isinstance(value, (int, float)):
        raise ValueError(f"span {span.name!r} has a broken reward: {value!r}; a reward is a number")
    return [NamedReward(_SINGLE_REWARD_NAME, float(value))]


def get_reward_value(span: SpanLike) -> float | None:
    """Read the primary reward of a span; None when it is not a reward span.

    Raises:
        ValueError: When the span has a reward without a name or a number.
    """
    rewards = get_rewards_from_span(span)
    return rewards[0].value if rewards else None


def is_reward_span(span: SpanLike) -> bool:
    """Tell whether a span carries a reward.

    Raises:
        ValueError: When the span has a reward without a name or a number.
    """
    return bool(get_rewards_from_span(span))


def find_reward_spans(spans: Sequence[SpanT]) -> list[SpanT]:
    """Pick the spans of an attempt whose rewards count, in the order given.

    These are the spans that its runner recorded: the tracer's, and the grader's. Where none of them carries a reward,
    they are those that were written with the attempt's key, but for those that came after its end.

    Raises:
        ValueError: When a span that is looked at has a reward without a name or a number.
    """
    for group in _by_source(spans):
        if found := [span for span in group if is_reward_span(span)]:
            return found
    return []


def find_final_reward(spans: Sequence[SpanLike]) -> float | None:
    """Read the primary reward of the last span of `find_reward_spans`; None when there is none.

    Raises:
        ValueError: When a span that is looked at has a reward without a name or a number.
    """
    for group in _by_source(spans):
        for span in reversed(group):
            value = get_reward_value(span)
            if value is not None:
                return value
    return None


def check_reward_attributes(attributes: Mapping[str, Any]) -> None:
    """Check the rewards among the attributes of a span that is made.

    Raises:
        ValueError: When a reward has no name or no number, or is not finite.
    """
    for reward in get_rewards_from_span(SpanCoreFields(name=AGL_ANNOTATION, attributes=dict(attributes))):
        _finite(reward.name, reward.value)


def _by_source(spans: Sequence[SpanT]) -> tuple[list[SpanT], list[SpanT]]:
    """Split spans into those of the runner and those that were reported in time."""
    own = [span for span in spans if not is_reported(span.attributes)]
    return own, [span for span in spans if is_reported(span.attributes) and not is_late(span.attributes)]


def _named_rewards(reward: float | Mapping[str, float], primary_key: str | None) -> list[NamedReward]:
    if not isinstance(reward, Mapping):
        if primary_key is not None:
            raise ValueError(f"primary_key={primary_key!r} chooses among named rewards, but the reward is one number")
        return [NamedReward(_SINGLE_REWARD_NAME, _finite(_SINGLE_REWARD_NAME, reward))]
    if not reward:
        raise ValueError("there is no reward in an empty dict; name at least one")
    for name in reward:
        if not isinstance(name, str):
            raise TypeError(f"a reward is named {name!r} ({type(name).__name__}); names must be strings")
    if primary_key is None:
        primary_key = next(iter(reward))
    elif primary_key not in reward:
        raise ValueError(f"primary_key={primary_key!r} is none of the rewards: {', '.join(reward)}")
    ordered = [primary_key, *(name for name in reward if name != primary_key)]
    return [NamedReward(name, _finite(name, reward[name])) for name in ordered]


def _finite(name: str, value: Any) -> float:
    if not isinstance(value, Real):
        raise TypeError(
            f"reward {name!r} must be a number, got {value!r} ({type(value).__name__}); convert with float()"
        )
    try:
        number = float(value)
    except OverflowError as exc:
        raise ValueError(f"reward {name!r} is too large for a float") from exc
    if not math.isfinite(number):
        raise ValueError(
            f"reward {name!r} must be finite, got {number}; for a run without a score raise an error or emit nothing"
        )
    return number
