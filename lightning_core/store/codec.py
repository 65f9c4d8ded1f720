"""Records, spans and values as JSON text, for databases: what they keep of them comes back as it was.

A database keeps the fields of a rollout that queries ask for, and the queue's and the deadline's own, each by itself.
The rest is two texts: the task, which hardly ever changes, and the state, which changes all the time. Of a span, what
follows from other fields, and what is the default, is not written.
"""

import json
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from pydantic_core import PydanticSerializationError, from_json, to_json

from lightning_core.errors import InvalidRequest
from lightning_core.lifecycle import Request, RolloutRecord
from lightning_core.types import Attempt, Rollout, RolloutConfig, Span
from lightning_core.types.frozen import FrozenDict, construct, evolve, freeze
from lightning_core.types.span import Event, Link, OtelResource, SpanContext, TraceStatus

_AS_THEY_ARE = (str, bool, int, float, type(None))


def dumped(value: Any) -> bytes:
    """Return JSON text for a value that is known to be JSON-like. NaN and the infinities are kept.

    Raises:
        InvalidRequest: For a text that is not valid Unicode, or a value that is nested too deeply (about 250 levels).
    """
    try:
        return to_json(value, inf_nan_mode="constants")
    except PydanticSerializationError as exc:
        raise InvalidRequest(f"this cannot be kept as JSON: {exc}") from exc


def loaded(text: bytes) -> Any:
    """Return the value of JSON text, a new one each time."""
    try:
        return from_json(text)
    except ValueError:
        return json.loads(text)  # the fast one stops at a depth of 200


def as_json(value: Any, what: str) -> Any:
    """Return a copy of a value as it will be read again: tuples are lists there, anything else is the same.

    Args:
        value: The value.
        what: What it is, for the error.

    Raises:
        InvalidRequest: For a value that JSON cannot hold; names the place.
    """
    try:
        copied = loaded(dumped(value))
    except ValueError:
        copied = None  # the walk says where and why
    if copied is not None and copied == value:
        return copied
    try:
        walked = _walked(value, what)
    except RecursionError as exc:
        raise InvalidRequest(f"{what} contains itself, or is nested too deeply to be kept as JSON") from exc
    return loaded(dumped(walked))


def _walked(value: Any, place: str) -> Any:
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise InvalidRequest(f"{place} has the key {key!r}; in what a durable store keeps, keys are strings")
        return {str(key): _walked(item, f"{place}[{key!r}]") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_walked(item, f"{place}[{number}]") for number, item in enumerate(value)]
    if not isinstance(value, _AS_THEY_ARE):
        raise InvalidRequest(
            f"{place} is of type {type(value).__name__}; a durable store keeps what JSON can hold: dicts, lists, "
            "strings, numbers, booleans and None"
        )
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError as exc:
            raise InvalidRequest(f"{place} is not valid Unicode: {exc}") from exc
    return value


# Rollout records

_NO_LIMITS = RolloutConfig()
_ROLLOUT_FIELDS = set(Rollout.model_fields)
_ATTEMPT_FIELDS = set(Attempt.model_fields)
COLUMNS = ("rollout_id", "status", "mode", "resources_id", "start_time", "end_time")
"""The fields of a rollout that queries ask for."""
_TASK = ("input", "metadata", "config")
_NEWER = {name: each.get_default() for name, each in Rollout.model_fields.items() if name not in COLUMNS + _TASK}
"""What belongs to the task since later versions, and what it is in tasks that were kept before."""


def kept(record: RolloutRecord, before: RolloutRecord | None) -> RolloutRecord:
    """Return the record as it will be read again, of values that JSON can hold.

    Args:
        record: The record.
        before: What it was made of; what it shares with this one is known to be plain.

    Raises:
        InvalidRequest: Names the value that JSON cannot hold.
    """
    rollout, old = record.rollout, before.rollout if before else None
    changed: dict[str, Any] = {}
    for name in ("input", "metadata", *_NEWER):
        value = getattr(rollout, name)
        if value is not None and (old is None or value is not getattr(old, name)):
            changed[name] = as_json(value, f"the {name} of rollout {rollout.rollout_id}")
    known = () if before is None else before.attempts
    attempts = tuple(
        attempt if attempt.metadata is None or any(attempt is other for other in known) else _kept_attempt(attempt)
        for attempt in record.attempts
    )
    if not changed and all(new is attempt for new, attempt in zip(attempts, record.attempts, strict=True)):
        return record
    return record._replace(rollout=evolve(rollout, **changed) if changed else rollout, attempts=attempts)


def same_task(one: Rollout, other: Rollout) -> bool:
    """Whether two rollouts share what hardly ever changes."""
    return all(getattr(one, name) is getattr(other, name) for name in (*_TASK, *_NEWER))


def task(rollout: Rollout) -> bytes:
    """Return what hardly ever changes of a rollout, as JSON."""
    config = None if rollout.config == _NO_LIMITS else rollout.config.model_dump(exclude_defaults=True)
    newer = {name: getattr(rollout, name) for name in _NEWER}
    return dumped([rollout.input, rollout.metadata, config, *([newer] if newer else [])])


_OF_ATTEMPT = (
    "attempt_id",
    "sequence_id",
    "start_time",
    "end_time",
    "status",
    "worker_id",
    "last_heartbeat_time",
    "metadata",
)
"""What is written of an attempt, in this order."""
_attempt_values = attrgetter(*_OF_ATTEMPT)


def state(record: RolloutRecord) -> bytes:
    """Return the attempts, and what the record knows beside its rollout, as JSON."""
    attempts = [_attempt_values(attempt) for attempt in record.attempts]
    return dumped([attempts, record.lease_seconds, record.faults, record.requests])


def decoded(run_id: str, fields: Mapping[str, Any], revision: int, *, task: bytes, state: bytes) -> RolloutRecord:
    """Return the record of what was kept.

    Args:
        run_id: Its run.
        fields: Those of its rollout that `COLUMNS` names.
        revision: Its revision.
        task: What `task` has made.
        state: What `state` has made.
    """
    attempts, lease_seconds, faults, requests = loaded(state)
    input, metadata, config, *newer = loaded(task)
    whole = {
        **_NEWER,
        **fields,
        "input": input,
        "config": _NO_LIMITS if config is None else RolloutConfig(**config),
        "metadata": metadata,
        **(newer[0] if newer else {}),
    }
    return RolloutRecord(
        run_id,
        construct(Rollout, whole, _ROLLOUT_FIELDS),
        tuple(_attempt(fields["rollout_id"], attempt) for attempt in attempts),
        revision,
        lease_seconds,
        tuple(faults),
        requests_of(requests),
    )


def requests_of(kept_requests: Sequence[Any]) -> tuple[Request, ...]:
    """Return requests as they were kept; an older version kept their ids alone with documents."""
    return tuple(Request(each) if isinstance(each, str) else Request(*each) for each in kept_requests)


def _kept_attempt(attempt: Attempt) -> Attempt:
    return evolve(attempt, metadata=as_json(attempt.metadata, f"the metadata of attempt {attempt.attempt_id}"))


def _attempt(rollout_id: str, kept_fields: Sequence[Any]) -> Attempt:
    fields = {"rollout_id": rollout_id, **dict(zip(_OF_ATTEMPT, kept_fields, strict=True))}
    return construct(Attempt, fields, _ATTEMPT_FIELDS)


# Spans

_FIELDS = set(Span.model_fields)
_CONTEXT_FIELDS = set(SpanContext.model_fields)
_NO_STATE = FrozenDict()
_OK = TraceStatus(status_code="OK")


class EncodedSpan(NamedTuple):
    """What is written of a span, but for its rollout and its attempt."""

    span_id: str
    sequence_id: int
    trace_id: str
    parent_id: str | None
    name: str
    start_time: float | None
    end_time: float | None
    source: bytes
    body: bytes


_span_values = attrgetter(*EncodedSpan._fields[:-2])


def encoded(spans: Sequence[Span]) -> list[EncodedSpan]:
    """Encode spans.

    Raises:
        InvalidRequest: For a field that spans do not have by themselves and whose value JSON cannot hold.
    """
    sources: dict[int, bytes] = {}
    rows = []
    for span in spans:
        source = sources.get(id(span.resource))
        if source is None:
            source = sources[id(span.resource)] = dumped([span.resource.attributes, span.resource.schema_url])
        rows.append(EncodedSpan._make((*_span_values(span), source, _body(span))))
    return rows


def _body(span: Span) -> bytes:
    body: dict[str, Any] = {}
    if span.attributes:
        body["a"] = span.attributes
    if span.status != _OK:
        body["s"] = [span.status.status_code, span.status.description]
    if span.events:
        body["e"] = [[event.name, event.timestamp, event.attributes] for event in span.events]
    if span.links:
        body["l"] = [[_context(link.context), link.attributes] for link in span.links]
    if not _follows(span.context, span.trace_id, span.span_id):
        body["c"] = _context(span.context)
    if not _follows(span.parent, span.trace_id, span.parent_id):
        body["p"] = _context(span.parent)
    if span.model_extra:
        body["x"] = as_json(span.model_extra, f"span {span.span_id}")
    return dumped(body)


def _follows(context: SpanContext | None, trace_id: str, span_id: str | None) -> bool:
    if context is None or not span_id:
        return context is None and not span_id
    plainly = context.span_id == span_id and context.trace_id == trace_id
    return plainly and not context.is_remote and not context.trace_state


def _context(context: SpanContext | None) -> list[Any] | None:
    if context is None:
        return None
    return [context.trace_id, context.span_id, context.is_remote, context.trace_state]


class SpanReader:
    """Makes the spans of one answer; those that came from one process share their resource.

    Args:
        rollout_id: Whose spans.
    """

    def __init__(self, rollout_id: str) -> None:
        self._rollout_id = rollout_id
        self._sources: dict[bytes, OtelResource] = {}

    def decoded(self, attempt_id: str, span: EncodedSpan) -> Span:
        """Return the span of what was written of it."""
        span_id, sequence_id, trace_id, parent_id, name, start_time, end_time, source, body_text = span
        body = loaded(body_text)
        resource = self._sources.get(source)
        if resource is None:
            attributes, schema_url = loaded(source)
            resource = OtelResource.model_construct(attributes=freeze(attributes), schema_url=schema_url)
            self._sources[source] = resource
        status = body.get("s")
        fields = {
            "rollout_id": self._rollout_id,
            "attempt_id": attempt_id,
            "sequence_id": sequence_id,
            "trace_id": trace_id,
            "span_id": span_id,
            "parent_id": parent_id,
            "name": name,
            "status": _OK
            if status is None
            else TraceStatus.model_construct(status_code=status[0], description=status[1]),
            "attributes": body.get("a", {}),
            "events": [
                Event.model_construct(name=name, timestamp=timestamp, attributes=freeze(attributes))
                for name, timestamp, attributes in body.get("e", ())
            ],
            "links": [
                Link.model_construct(context=_read_context(context), attributes=freeze(attributes))
                for context, attributes in body.get("l", ())
            ],
            "start_time": start_time,
            "end_time": end_time,
            "context": _context_of(body, "c", trace_id, span_id),
            "parent": _context_of(body, "p", trace_id, parent_id),
            "resource": resource,
        }
        return construct(Span, fields, set(_FIELDS), body.get("x", {}))


def _read_context(fields: Sequence[Any]) -> SpanContext:
    trace_id, span_id, is_remote, trace_state = fields
    return _make_context(trace_id, span_id, is_remote, freeze(trace_state))


def _context_of(body: dict[str, Any], key: str, trace_id: str, span_id: str | None) -> SpanContext | None:
    if key in body:
        return None if body[key] is None else _read_context(body[key])
    return _make_context(trace_id, span_id, False, _NO_STATE) if span_id else None


def _make_context(trace_id: str, span_id: str, is_remote: bool, trace_state: FrozenDict) -> SpanContext:
    fields = {"trace_id": trace_id, "span_id": span_id, "is_remote": is_remote, "trace_state": trace_state}
    return construct(SpanContext, fields, _CONTEXT_FIELDS)
