"""Copies at the store's edge, so that neither side can change what the other holds."""

import copy
import gc
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from lightning_core.errors import InvalidRequest
from lightning_core.lifecycle import RolloutRecord
from lightning_core.rewards import bare_rewards
from lightning_core.types import Attempt, AttemptedRollout, EnqueueRolloutRequest, Rollout, Span, Worker
from lightning_core.types.frozen import clone, construct
from lightning_core.types.span import Event, TraceStatus, plain_attributes

_IMMUTABLE = frozenset({str, int, float, bool, bytes, type(None)})


def copy_value(value: Any) -> Any:
    """Copy any value; JSON-like ones quickly.

    Raises:
        InvalidRequest: When it contains itself, is nested deeper than Python can follow, or has something in it that
            cannot be copied, such as a lock or a generator.
    """
    if type(value) in _IMMUTABLE:
        return value
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


def copy_attempt(attempt: Attempt) -> Attempt:
    """Copy an attempt."""
    return clone(attempt, metadata=copy_value(attempt.metadata))


def copy_rollout(record: RolloutRecord) -> Rollout:
    """Copy the rollout of a record; an `AttemptedRollout` once it has an attempt."""
    if record.attempts:
        return copy_attempted(record, record.attempts[-1])
    return clone(record.rollout, **copy_fields(record.rollout))


def copy_rollouts(records: Sequence[RolloutRecord]) -> list[Rollout]:
    """Copy the rollouts of records; see `copy_rollout`."""
    with _without_collections():
        return [copy_rollout(record) for record in records]


@contextmanager
def _without_collections() -> Iterator[None]:
    """Let no garbage be collected while many objects are made: nothing of them is garbage, and to find that out again
    and again takes twice as long as to make them.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def copy_attempted(record: RolloutRecord, attempt: Attempt) -> AttemptedRollout:
    """Copy the rollout of a record together with one of its attempts."""
    metadata = copy_value(attempt.metadata)
    fields = copy_fields(record.rollout)
    fields["attempt"] = clone(attempt, metadata=metadata)
    return construct(AttemptedRollout, fields, record.rollout.__pydantic_fields_set__ | {"attempt"})


def copy_fields(rollout: Rollout | EnqueueRolloutRequest) -> dict[str, Any]:
    """Return copies of the fields of a rollout, or of a request for one."""
    config = rollout.config
    fields = {name: value if value is config else copy_value(value) for name, value in rollout.__dict__.items()}
    if config is not None:
        fields["config"] = clone(config, retry_condition=config.retry_condition.copy())
    return fields


def copy_worker(worker: Worker) -> Worker:
    """Copy a worker's record."""
    return clone(worker, heartbeat_stats=copy_value(worker.heartbeat_stats))


def own_spans(spans: Iterable[Span]) -> list[Span]:
    """Copy spans that come in. What cannot be changed is shared. The copies are to be treated as frozen.

    Raises:
        ValueError: When an attribute was given a value that spans do not take.
    """
    return [_span(span.__dict__, span.__pydantic_extra__, _SPAN_FIELDS) for span in spans]


def span_of(fields: dict[str, Any], extra: dict[str, Any] | None = None) -> Span:
    """Make a span of the fields of one that is kept, for the caller."""
    return _span(fields, extra, _SPAN_FIELDS.copy())


def _span(fields: dict[str, Any], extra: dict[str, Any] | None, fields_set: set[str]) -> Span:
    values = fields.copy()
    values["attributes"] = plain_attributes(fields["attributes"])
    values["events"] = [*fields["events"]]
    values["links"] = [*fields["links"]]
    return construct(Span, values, fields_set, copy.deepcopy(extra) if extra else {})


_KEPT_TEXTS = (
    *(f"agentlightning.{name}" for name in ("link", "tag", "reported", "rollout_id", "attempt_id")),
    *("agentlightning.operation.name", "agentlightning.tracer.name", "agentlightning.object.type"),
    *("gen_ai.operation.name", "gen_ai.provider.name", "gen_ai.system", "gen_ai.request.model"),
    *("gen_ai.response.model", "gen_ai.response.finish_reasons", "error.type"),
    *("gen_ai.tool.name", "gen_ai.agent.name", "service.", "telemetry."),
)
"""What the names of attributes begin with whose values are no content, whatever they are."""


def without_content(span: Span) -> Span:
    """Return a span without what was said; see `LightningStore.drop_content`."""
    rewards, resource = bare_rewards(span.attributes), span.resource
    plain = {name: value for name, value in resource.attributes.items() if name.startswith(_KEPT_TEXTS)}
    fields = {
        **span.__dict__,
        "attributes": {
            name: rewards.get(name, value)
            for name, value in span.attributes.items()
            if isinstance(value, bool | int | float) or name.startswith(_KEPT_TEXTS) or name in rewards
        },
        "events": [Event(name=each.name, attributes={}, timestamp=each.timestamp) for each in span.events],
        "links": [each.model_copy(update={"attributes": {}}) for each in span.links],
        # What loses nothing stays the object that many spans share.
        "resource": resource if plain == resource.attributes else resource.model_copy(update={"attributes": plain}),
        "status": TraceStatus(status_code=span.status.status_code) if span.status.description else span.status,
    }
    return construct(Span, fields, _SPAN_FIELDS.copy())


# A span that the store has taken has all of its fields, wherever it came from.
_SPAN_FIELDS = set(Span.model_fields)
