"""Spans that begin and end at the same moment, made without the OpenTelemetry SDK.

What agents emit is mostly of this kind, and there is much of it: an SDK span that nobody else sees costs four times as
much as what is kept of it. The outcome is the same, and a test holds that.
"""

import os
from typing import Any

from opentelemetry import trace as otel
from opentelemetry.context import Context

from lightning_core.tracer.trace import Trace
from lightning_core.types import OtelResource, Span, SpanContext, TraceStatus
from lightning_core.types.clone import construct
from lightning_core.types.frozen import EMPTY

_SIMPLE = frozenset({str, bool, int, float, type(None)})
_CONTEXT_FIELDS = set(SpanContext.model_fields)
_SPAN_FIELDS = set(Span.model_fields)


def make_point(
    name: str,
    attributes: dict[str, Any],
    *,
    moment_ns: int,
    status: TraceStatus,
    trace: Trace,
    context: Context,
    resource: OtelResource,
) -> Span | None:
    """Make the span that the SDK would have made.

    Args:
        name: The span's name.
        attributes: Its attributes; the span keeps this very dict.
        moment_ns: When, in nanoseconds since the epoch.
        status: Its status.
        trace: Where it will be recorded.
        context: Where it is made: the current span there becomes its parent.
        resource: What produces it.

    Returns:
        The span, without a number; None when only the SDK knows what it should be.
    """
    above = otel.get_current_span(context).get_span_context()
    parent: SpanContext | None = None
    if above.is_valid:
        if above.trace_state:
            return None
        parent = SpanContext.from_opentelemetry(above)
    for key, value in attributes.items():
        if type(value) not in _SIMPLE or type(key) is not str or not key:
            return None
    digits = os.urandom(8 if parent else 24).hex()
    trace_id, span_id = parent.trace_id if parent else digits[16:], digits[:16]
    moment = moment_ns / 1_000_000_000
    own = {"trace_id": trace_id, "span_id": span_id, "is_remote": False, "trace_state": EMPTY}
    fields = {
        "rollout_id": trace.rollout_id or "",
        "attempt_id": trace.attempt_id or "",
        "sequence_id": 0,
        "trace_id": trace_id,
        "span_id": span_id,
        "parent_id": parent.span_id if parent else None,
        "name": name,
        "status": recorded_status(status),
        "attributes": attributes,
        "events": [],
        "links": [],
        "start_time": moment,
        "end_time": moment,
        # Unchangeable, so that all of them may share their set of fields: less for the garbage collector to look at.
        "context": construct(SpanContext, own, _CONTEXT_FIELDS),
        "parent": parent,
        "resource": resource,
    }
    span = construct(Span, fields, set(_SPAN_FIELDS))
    object.__setattr__(span, "__pydantic_extra__", {})  # whoever has it may add fields
    return span


def recorded_status(status: TraceStatus) -> TraceStatus:
    """Return a status as OpenTelemetry records it: with a description for errors only."""
    if status.description is None or status.status_code == "ERROR":
        return status
    return TraceStatus(status_code=status.status_code)
