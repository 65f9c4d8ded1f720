"""What an agent calls to say how well it went."""

import functools
import inspect
from collections.abc import Callable, Mapping
from math import isfinite
from numbers import Real
from typing import Any

from lightning_core.emitter.emission import emit_span
from lightning_core.errors import InvalidReward
from lightning_core.rewards import SINGLE_REWARD_NAME, NamedReward, get_rewards_from_span
from lightning_core.semconv import AGL_ANNOTATION, LightningSpanAttributes, RewardAttributes
from lightning_core.types import SpanCoreFields

_PREFIX = LightningSpanAttributes.REWARD.value
_NAME = RewardAttributes.REWARD_NAME.value
_VALUE = RewardAttributes.REWARD_VALUE.value


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
    rewards: dict[str, Any] = {}
    for index, named in enumerate(_named_rewards(reward, primary_key)):
        rewards[f"{_PREFIX}.{index}.{_NAME}"] = named.name
        rewards[f"{_PREFIX}.{index}.{_VALUE}"] = named.value
    return emit_span(AGL_ANNOTATION, rewards, attributes, reserved=_PREFIX, propagate=propagate, emitter="emit_reward")


def check_reward_attributes(attributes: Mapping[str, Any]) -> None:
    """Check the rewards among the attributes of a span that is made.

    Raises:
        ValueError: When a reward has no name or no number, or is not finite.
    """
    for reward in get_rewards_from_span(SpanCoreFields(name=AGL_ANNOTATION, attributes=dict(attributes))):
        _finite(reward.name, reward.value)


def _named_rewards(reward: float | Mapping[str, float], primary_key: str | None) -> list[NamedReward]:
    if not isinstance(reward, Mapping):
        if primary_key is not None:
            raise ValueError(f"primary_key={primary_key!r} chooses among named rewards, but the reward is one number")
        return [NamedReward(SINGLE_REWARD_NAME, _finite(SINGLE_REWARD_NAME, reward))]
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
        raise InvalidReward(
            f"reward {name!r} must be a number, got {value!r} ({type(value).__name__}); convert with float()"
        )
    try:
        number = float(value)
    except OverflowError as exc:
        raise ValueError(f"reward {name!r} is too large for a float") from exc
    if not isfinite(number):
        raise ValueError(
            f"reward {name!r} must be finite, got {number}; for a run without a score raise an error or emit nothing"
        )
    return number


def reward(function: Callable[..., Any]) -> Callable[..., Any]:
    """Emit what a function returns as a reward; deprecated, as in 0.3: call `emit_reward`."""
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def call_async(*args: Any, **kwargs: Any) -> Any:
            return _emitted(await function(*args, **kwargs))

        return call_async

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return _emitted(function(*args, **kwargs))

    return call


def _emitted(value: Any) -> Any:
    emit_reward(value)
    return value
