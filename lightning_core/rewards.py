"""Rewards as spans have them, and the final reward of an attempt, which the store keeps with it."""

import json
import math
import re
import reprlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeVar

from lightning_core.semconv import AGL_ANNOTATION, LightningSpanAttributes, RewardAttributes
from lightning_core.types.frozen import clone
from lightning_core.types.span import Span


class SpanLike(Protocol):
    """A `lightning_core.types.Span` or an OpenTelemetry `ReadableSpan`."""

    @property
    def name(self) -> str:
        """The span's name."""
        ...

    @property
    def attributes(self) -> Mapping[str, Any] | None:
        """The span's attributes."""
        ...


def listed(attributes: Mapping[str, Any], prefix: str, *fields: str) -> Iterator[str]:
    """Yield the name of each entry, `prefix.0` first, up to the first one that is not there.

    Args:
        attributes: Flat attributes.
        prefix: What the names of all entries begin with.
        fields: What an entry consists of: it is there when any of `prefix.0.FIELD` is. None when it is one value.
    """
    for position in count():
        name = f"{prefix}.{position}"
        if not any(part in attributes for part in ([f"{name}.{field}" for field in fields] or [name])):
            return
        yield name


SpanT = TypeVar("SpanT", bound=SpanLike)

_AGENTOPS_OUTPUTS = ("agentops.task.output", "agentops.entity.output")
"""Where AgentOps puts what a decorated reward function gave: `{"type": "reward", "value": 0.5}`, mostly as JSON."""

_ANNOTATION = "reward"
"""The attribute of an annotation that was the reward in agentlightning 0.2."""


def old_reward(span: SpanLike) -> Any:
    """Return what a span of those times has as its reward, number or not; None when it has none."""
    attributes = span.attributes or {}
    for name in _AGENTOPS_OUTPUTS:
        output = _agentops_reward(attributes.get(name))
        if output is not None:
            return output.get("value")
    return attributes.get(_ANNOTATION) if getattr(span, "name", None) == AGL_ANNOTATION else None


def _agentops_reward(output: Any) -> Mapping[str, Any] | None:
    if isinstance(output, str) and '"reward"' in output:
        try:
            output = json.loads(output)
        except (ValueError, RecursionError):
            # Any function's output may be there; this is a text that has the word in it.
            return None
    return output if isinstance(output, Mapping) and output.get("type") == "reward" else None


_PREFIX = LightningSpanAttributes.REWARD.value
_NAME = RewardAttributes.REWARD_NAME.value
_VALUE = RewardAttributes.REWARD_VALUE.value
_FIRST_NAME = f"{_PREFIX}.0.{_NAME}"
_FIRST_VALUE = f"{_PREFIX}.0.{_VALUE}"
_LISTED = re.compile(rf"{re.escape(_PREFIX)}\.\d+\.(?:{_NAME}|{_VALUE})")
SINGLE_REWARD_NAME = "primary"
"""The name of a reward that was given without one."""


@dataclass(frozen=True, slots=True)
class NamedReward:
    """One number that says how well a rollout, or a part of it, went."""

    name: str
    """What it measures; `primary` by default."""
    value: float
    """More is better."""


def get_rewards_from_span(span: SpanLike) -> list[NamedReward]:
    """Read all rewards of a span; those of agentlightning before 0.3, AgentOps's among them, have one each.

    Returns:
        The rewards, the primary one first; none when it is not a reward span.

    Raises:
        ValueError: When the span has a reward without a name or a number.
    """
    return [NamedReward(name, value) for name, value in _read_rewards(span)]


def _read_rewards(span: SpanLike) -> list[tuple[str, float]]:
    attributes = span.attributes or {}
    rewards: list[tuple[str, float]] = []
    # Most spans are not rewards, and all of them are checked.
    is_listed = _FIRST_NAME in attributes or _FIRST_VALUE in attributes
    for entry in listed(attributes, _PREFIX, _NAME, _VALUE) if is_listed else ():
        name, value = attributes.get(f"{entry}.{_NAME}"), attributes.get(f"{entry}.{_VALUE}")
        if not isinstance(name, str) or not isinstance(value, (int, float)):
            raise ValueError(
                f"span {span.name!r} has a broken reward at {entry!r}: name {reprlib.repr(name)}, "
                f"value {reprlib.repr(value)}; a reward needs a str and a number"
            )
        rewards.append((name, _number(span, value)))
    if rewards:
        return rewards
    value = old_reward(span)
    if value is None:
        return []
    if not isinstance(value, (int, float)):
        raise ValueError(f"span {span.name!r} has a broken reward: {reprlib.repr(value)}; a reward is a number")
    return [(SINGLE_REWARD_NAME, _number(span, value))]


def _number(span: SpanLike, value: float) -> float:
    try:
        return float(value)
    except OverflowError as exc:
        raise ValueError(f"span {span.name!r} has a broken reward: a number too large for a float") from exc


def bare_rewards(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return only the texts among attributes that make rewards of them, without what else AgentOps wrote there."""
    bare: dict[str, Any] = {name: value for name, value in attributes.items() if _LISTED.fullmatch(name)}
    for name in _AGENTOPS_OUTPUTS:
        if (output := _agentops_reward(attributes.get(name))) is not None:
            value = output.get("value")
            is_plain = value is None or isinstance(value, int | float)
            bare[name] = json.dumps({"type": "reward", "value": value if is_plain else "broken"})
    return bare


def may_have_reward(span: SpanLike) -> bool:
    """Tell at once of most spans that `get_rewards_from_span` finds nothing in them."""
    attributes = span.attributes
    if not attributes:
        return False
    return (
        _FIRST_NAME in attributes
        or _FIRST_VALUE in attributes
        or span.name == AGL_ANNOTATION
        or any(name in attributes for name in _AGENTOPS_OUTPUTS)
    )


def get_reward_value(span: SpanLike) -> float | None:
    """Read the primary reward of a span; None when it is not a reward span.

    Raises:
        ValueError: When the span has a reward without a name or a number.
    """
    rewards = _read_rewards(span)
    return rewards[0][1] if rewards else None


def is_reward_span(span: SpanLike) -> bool:
    """Tell whether a span carries a reward.

    Raises:
        ValueError: When the span has a reward without a name or a number.
    """
    return bool(_read_rewards(span))


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


def sound_final_reward(spans: Sequence[SpanLike]) -> float | None:
    """Read what `find_final_reward` does; None, too, where a span has a broken reward, or the reward is not finite."""
    try:
        value = find_final_reward(spans)
    except ValueError:
        return None
    return value if value is not None and math.isfinite(value) else None


def _by_source(spans: Sequence[SpanT]) -> tuple[list[SpanT], list[SpanT]]:
    """Split spans into those of the runner and those that were reported in time."""
    runner_spans = [span for span in spans if not is_reported(span.attributes)]
    return runner_spans, [span for span in spans if is_reported(span.attributes) and not is_late(span.attributes)]


FINAL_REWARD: Final = "lightning_core.final_reward"
"""Under this name an attempt's metadata have what `find_final_reward` finds in its spans.

It is a mapping with `value`, `sequence_id` (of the span) and `reported`. None says that only the spans tell. Only the
store writes it, as spans arrive; there is none without a reward.
"""


def final_reward_in(metadata: Mapping[str, Any] | None) -> float | None:
    """Return the final reward that an attempt's metadata have; None where they do not tell, and the spans may."""
    kept = (metadata or {}).get(FINAL_REWARD)
    return float(kept["value"]) if kept else None


class Arrival(NamedTuple):
    """A span that a store was given."""

    span: SpanLike
    sequence_id: int
    """As it was kept; 0 where that is not known."""
    is_new: bool
    """Whether it was not there before."""


def with_rewards_of(metadata: Mapping[str, Any] | None, arrived: Iterable[Arrival]) -> Mapping[str, Any] | None:
    """Return an attempt's metadata with its final reward after spans have arrived; the same object for no change."""
    before = kept = (metadata or {}).get(FINAL_REWARD, {})
    for each in arrived:
        kept = _followed(kept, each)
    return metadata if kept is before else {**(metadata or {}), FINAL_REWARD: kept}


def keep_final_reward(given: Mapping[str, Any] | None, kept: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Return metadata that take the place of others, with the final reward that those have, and no other."""
    metadata = {name: value for name, value in (given or {}).items() if name != FINAL_REWARD}
    if kept is not None and FINAL_REWARD in kept:
        metadata[FINAL_REWARD] = kept[FINAL_REWARD]
    return None if given is None and not metadata else metadata


def _followed(kept: Any, arrival: Arrival) -> Any:
    """Return what is known of the final reward after one more span: a mapping, empty without a reward, or None."""
    attributes = arrival.span.attributes
    try:
        value = get_reward_value(arrival.span)
    except ValueError:  # whoever reads the spans is told
        return None
    if value is None or kept is None or is_late(attributes):
        return kept
    if not math.isfinite(value) or arrival.sequence_id == 0:
        return None
    reported = is_reported(attributes)
    if kept:
        rank, best = (not reported, arrival.sequence_id), (not kept["reported"], kept["sequence_id"])
        if rank < best or (rank == best and not arrival.is_new):
            return kept
    if not arrival.is_new:  # a delivery broke off before its reward was noted, or the kept span of this id is another
        return None
    return {"value": value, "sequence_id": arrival.sequence_id, "reported": reported}


_REPORTED = LightningSpanAttributes.REPORTED.value


def as_reported(span: Span, when: Literal["live", "late"] = "live") -> Span:
    """Return a copy of a span that is marked as reported.

    Args:
        span: The span.
        when: `late` for a span that came after the end of its attempt.
    """
    return clone(span, attributes={**span.attributes, _REPORTED: when})


def is_reported(attributes: Mapping[str, Any] | None) -> bool:
    """Tell by a span's attributes whether it was reported."""
    return attributes is not None and _REPORTED in attributes


def is_late(attributes: Mapping[str, Any] | None) -> bool:
    """Tell by a span's attributes whether it was reported after the end of its attempt."""
    return attributes is not None and attributes.get(_REPORTED) == "late"
