"""Copies at the store's edge, so that neither side can change what the other holds."""

import copy
from typing import Any

from lightning_core.lifecycle import RolloutRecord
from lightning_core.types import Attempt, AttemptedRollout, Rollout, Span
from lightning_core.types.span import plain_attributes

_IMMUTABLE = frozenset({str, int, float, bool, bytes, type(None)})


def copy_value(value: Any) -> Any:
    """Copy any value; JSON-like ones quickly."""
    kind = type(value)
    if kind in _IMMUTABLE:
        return value
    if kind is dict:
        return {key: copy_value(item) for key, item in value.items()}
    if kind is list:
        return [copy_value(item) for item in value]
    return copy.deepcopy(value)


def copy_attempt(attempt: Attempt) -> Attempt:
    """Copy an attempt."""
    metadata = attempt.metadata
    return attempt.model_copy() if metadata is None else attempt.model_copy(update={"metadata": copy_value(metadata)})


def copy_rollout(record: RolloutRecord) -> Rollout:
    """Copy the rollout of a record; an `AttemptedRollout` once it has an attempt."""
    rollout, latest = record.rollout, record.latest
    own = {
        "input": copy_value(rollout.input),
        "config": rollout.config.model_copy(update={"retry_condition": list(rollout.config.retry_condition)}),
        "metadata": copy_value(rollout.metadata),
    }
    if latest is None:
        return rollout.model_copy(update=own)
    return AttemptedRollout.model_construct(**{**rollout.__dict__, **own, "attempt": copy_attempt(latest)})


def copy_span(span: Span) -> Span:
    """Copy a span.

    Raises:
        ValueError: When an attribute was given a value that spans do not take.
    """
    own: dict[str, Any] = {
        "attributes": plain_attributes(span.attributes),
        "status": span.status.model_copy(),
        "resource": span.resource.model_copy(update={"attributes": plain_attributes(span.resource.attributes)}),
        "events": [event.model_copy(deep=True) for event in span.events],
        "links": [link.model_copy(deep=True) for link in span.links],
    }
    if span.context is not None:
        own["context"] = span.context.model_copy(update={"trace_state": dict(span.context.trace_state)})
    if span.parent is not None:
        own["parent"] = span.parent.model_copy(update={"trace_state": dict(span.parent.trace_state)})
    copied = span.model_copy(update=own)
    if span.model_extra:
        copied.__pydantic_extra__ = copy.deepcopy(span.model_extra)
    return copied
