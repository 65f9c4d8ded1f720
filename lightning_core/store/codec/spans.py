"""Spans as columns and JSON, and back. What follows from other fields, and what is the default, is not written."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from lightning_core.store.codec.plain import dumped, loaded, plain
from lightning_core.types import Span
from lightning_core.types.clone import construct
from lightning_core.types.frozen import FrozenDict, freeze
from lightning_core.types.span import Event, Link, OtelResource, SpanContext, TraceStatus

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


def encoded(spans: Sequence[Span]) -> list[EncodedSpan]:
    """Encode spans.

    Raises:
        InvalidRequest: For a field that spans do not have by themselves and whose value JSON cannot hold.
    """
    sources: dict[int, bytes] = {}
    found = []
    for span in spans:
        source = sources.get(id(span.resource))
        if source is None:
            source = sources[id(span.resource)] = dumped([span.resource.attributes, span.resource.schema_url])
        found.append(
            EncodedSpan(
                *(span.span_id, span.sequence_id, span.trace_id, span.parent_id, span.name),
                *(span.start_time, span.end_time, source, _body(span)),
            )
        )
    return found


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
        body["x"] = plain(span.model_extra, f"span {span.span_id}")
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
