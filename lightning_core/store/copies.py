"""Copies at the store's edge, so that neither side can change what the other holds."""

import copy
from typing import Any

from lightning_core.errors import InvalidRequest
from lightning_core.lifecycle import RolloutRecord
from lightning_core.types import Attempt, AttemptedRollout, Rollout, RolloutConfig, Span
from lightning_core.types.clone import clone, construct
from lightning_core.types.span import plain_attributes

_IMMUTABLE = frozenset({str, int, float, bool, bytes, type(None)})


def copy_value(value: Any) -> Any:
    """Copy any value; JSON-like ones quickly.

    Raises:
        InvalidRequest: When it contains itself, is nested deeper than Python can follow, or has something in it that
            cannot be copied, such as a lock or a generator.
    """
    try:
        return _copied(value)
    except RecursionError as exc:
        raise InvalidRequest(
            f"a {type(value).__name__} contains itself, or is nested too deep to be copied; give a plain value"
        ) from exc
    except TypeError as exc:
        raise InvalidRequest(f"a {type(value).__name__} cannot be copied: {exc}; give a plain value") from exc


def _copied(value: Any) -> Any:
    kind = type(value)
    if kind in _IMMUTABLE:
        return value
    if kind is dict:
        if _IMMUTABLE.issuperset(map(type, value.values())):
            return value.copy()
        return {key: _copied(item) for key, item in value.items()}
    if kind is list:
        if _IMMUTABLE.issuperset(map(type, value)):
            return value.copy()
        return [_copied(item) for item in value]
    return copy.deepcopy(value)


def copy_config(config: RolloutConfig) -> RolloutConfig:
    """Copy a rollout's limits."""
    return clone(config, retry_condition=config.retry_condition.copy())


def copy_attempt(attempt: Attempt) -> Attempt:
    """Copy an attempt."""
    return clone(attempt, metadata=copy_value(attempt.metadata))


def copy_rollout(record: RolloutRecord) -> Rollout:
    """Copy the rollout of a record; an `AttemptedRollout` once it has an attempt."""
    if record.latest is not None:
        return copy_attempted(record, record.latest)
    return construct(Rollout, _own_rollout(record.rollout), set(record.rollout.__pydantic_fields_set__))


def copy_attempted(record: RolloutRecord, attempt: Attempt) -> AttemptedRollout:
    """Copy the rollout of a record together with one of its attempts."""
    fields = _own_rollout(record.rollout)
    fields["attempt"] = copy_attempt(attempt)
    return construct(AttemptedRollout, fields, record.rollout.__pydantic_fields_set__ | {"attempt"})


def own_span(span: Span) -> Span:
    """Copy a span that comes in. What cannot be changed is shared.

    Raises:
        ValueError: When an attribute was given a value that spans do not take.
    """
    return construct(Span, _own_fields(span.__dict__), _SPAN_FIELDS, _own_extra(span.__pydantic_extra__))


def span_of(fields: dict[str, Any], extra: dict[str, Any] | None) -> Span:
    """Make a span of the fields of one that is kept, for whoever asked for it."""
    return construct(Span, _own_fields(fields), set(_SPAN_FIELDS), _own_extra(extra))


def numbered(span: Span, sequence_id: int) -> Span:
    """Return the span with this sequence id: itself where it has it, else a copy that shares its parts."""
    return span if span.sequence_id == sequence_id else clone(span, sequence_id=sequence_id)


def _own_rollout(rollout: Rollout) -> dict[str, Any]:
    return {
        **rollout.__dict__,
        "input": copy_value(rollout.input),
        "config": copy_config(rollout.config),
        "metadata": copy_value(rollout.metadata),
    }


def _own_fields(fields: dict[str, Any]) -> dict[str, Any]:
    return {
        **fields,
        "attributes": plain_attributes(fields["attributes"]),
        "events": [*fields["events"]],
        "links": [*fields["links"]],
    }


def _own_extra(extra: dict[str, Any] | None) -> dict[str, Any]:
    return copy.deepcopy(extra) if extra else {}


# A span that the store has taken has all of its fields, wherever it came from.
_SPAN_FIELDS = set(Span.model_fields)
