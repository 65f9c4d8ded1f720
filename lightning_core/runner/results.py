"""What an agent may return, and what is recorded of it."""

import math
import numbers
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lightning_core.emitter import emit_reward, get_rewards_from_span
from lightning_core.errors import InvalidResult
from lightning_core.types import AttemptedRollout, Span, SpanCoreFields

_ALLOWED = "None, a number, a dict of numbers by name, or a list of spans (ReadableSpan, Span or SpanCoreFields)"


def record_result(result: Any, rollout: AttemptedRollout) -> list[Span]:
    """Emit the reward that an agent returned.

    Must be called in the attempt's trace.

    Returns:
        The spans that it returned, addressed to its attempt: the caller hands them to the store.

    Raises:
        InvalidResult: When it is nothing that an agent may return; says what is.
        ValueError: When a reward is not finite.
    """
    if result is None:
        return []
    if _is_number(result):
        emit_reward(result)
        return []
    if isinstance(result, Mapping):
        if not result or not all(map(_is_number, result.values())):
            raise InvalidResult(f"the agent returned {_shown(result)}; allowed are {_ALLOWED}")
        emit_reward({str(name): value for name, value in result.items()})
        return []
    if isinstance(result, Sequence) and not isinstance(result, str | bytes):
        return [_as_span(item, rollout, result) for item in result]
    raise InvalidResult(f"the agent returned {_shown(result)}; allowed are {_ALLOWED}")


def spans_of(result: Any, rollout: AttemptedRollout) -> list[Span]:
    """Return the spans that an agent returned, addressed to its attempt; none where it returned anything else."""
    if not isinstance(result, Sequence) or not result or not all(map(_is_span, result)):
        return []
    return [_as_span(item, rollout, result) for item in result]


def check_rewards(spans: Iterable[Span]) -> None:
    """Refuse rewards that nobody could read or reckon with; those that `emit_reward` made are sound.

    Raises:
        InvalidResult: When a reward has no name or no number, or is not finite; names the span.
    """
    for span in spans:
        try:
            rewards = get_rewards_from_span(span)
        except ValueError as exc:
            raise InvalidResult(str(exc)) from exc
        for reward in rewards:
            if not math.isfinite(reward.value):
                raise InvalidResult(
                    f"span {span.name!r} has a reward {reward.name!r} that is not finite: {reward.value}"
                )


def _as_span(item: Any, rollout: AttemptedRollout, result: Any) -> Span:
    rollout_id, attempt_id = rollout.rollout_id, rollout.attempt.attempt_id
    if isinstance(item, Span):
        return item.model_copy(update={"rollout_id": rollout_id, "attempt_id": attempt_id, "sequence_id": 0})
    if isinstance(item, SpanCoreFields):
        return Span.from_core_fields(item, rollout_id=rollout_id, attempt_id=attempt_id)
    if _is_span(item):
        return Span.from_opentelemetry(item, rollout_id, attempt_id, 0)
    raise InvalidResult(
        f"the agent returned {_shown(result)} with a {type(item).__name__} in it; allowed are {_ALLOWED}"
    )


def _is_span(item: Any) -> bool:
    is_readable = hasattr(item, "get_span_context") and hasattr(item, "attributes")
    return is_readable or isinstance(item, Span | SpanCoreFields)


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real)


def _shown(value: Any) -> str:
    text = repr(value)
    return f"a {type(value).__name__} ({text if len(text) <= 80 else text[:77] + '...'})"
