"""Spans of a moment are made without the SDK, and are what the SDK makes of them."""

from typing import Any

import pytest
from opentelemetry import trace as otel
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.trace.span import TraceState

from lightning_core.tracer import OtelTracer
from lightning_core.types import Span, TraceStatus


class Observer(SpanProcessor):
    """Somebody who wants to see the SDK's spans."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def on_end(self, span: ReadableSpan) -> None:
        self.names.append(span.name)


def remote_parent(state: TraceState | None = None) -> otel.Span:
    context = otel.SpanContext(0xA, 0xB, is_remote=True, trace_state=state)
    return otel.NonRecordingSpan(context)


async def recorded(tracer: OtelTracer, parent: otel.Span | None, *args: Any, **kwargs: Any) -> Span:
    async with tracer.trace_context() as trace:
        if parent is None:
            tracer.create_span(*args, **kwargs)
        else:
            with otel.use_span(parent):
                tracer.create_span(*args, **kwargs)
    (span,) = trace.spans
    return span


def without_its_identity(span: Span) -> dict[str, Any]:
    dumped = span.model_dump()
    own_ids = [dumped.pop("span_id"), dumped["context"].pop("span_id")]
    assert own_ids[0] == own_ids[1]
    assert len(own_ids[0]) == 16
    if span.parent is None:
        trace_ids = [dumped.pop("trace_id"), dumped["context"].pop("trace_id")]
        assert trace_ids[0] == trace_ids[1]
        assert len(trace_ids[0]) == 32
    return dumped


@pytest.mark.parametrize("parent", [None, remote_parent(), remote_parent(TraceState([("vendor", "x")]))])
@pytest.mark.parametrize(
    "status",
    [
        None,
        TraceStatus(status_code="UNSET"),
        TraceStatus(status_code="OK", description="dropped by OpenTelemetry"),
        TraceStatus(status_code="ERROR", description="why"),
    ],
)
@pytest.mark.parametrize(
    "attributes",
    [
        None,
        {"text": "a", "flag": True, "count": 1, "share": 0.5, "nothing": None},
        {"list": [1, 2], "tuple": ("a", "b"), "mixed": [1, "a", None], "map": {"k": 1}, "bytes": b"\x00"},
        {"": "has no name"},
    ],
)
async def test_point_is_what_the_sdk_makes_of_it(
    parent: otel.Span | None, status: TraceStatus | None, attributes: dict[str, Any] | None
) -> None:
    alone, observed = OtelTracer(instrument=()), OtelTracer(instrument=())
    with alone.lifespan(), observed.lifespan():
        observer = Observer()
        observed.provider.add_span_processor(observer)
        spans = [
            await recorded(tracer, parent, "point", attributes, timestamp=1_700_000_000.5, status=status)
            for tracer in (alone, observed)
        ]
    assert observer.names == ["point"]
    ours, sdks = map(without_its_identity, spans)
    assert ours == sdks
    assert spans[0].model_fields_set == spans[1].model_fields_set


async def test_what_is_done_to_one_point_does_not_reach_another(tracer: OtelTracer) -> None:
    given = {"a": 1}
    async with tracer.trace_context() as trace:
        created = tracer.create_span("first", given)
        tracer.create_span("second", given)
    first, second = trace.spans
    first.attributes["a"] = 2
    first.extra_field = "kept"  # type: ignore[attr-defined]
    assert (given, created.attributes, second.attributes) == ({"a": 1}, {"a": 1}, {"a": 1})
    assert first.model_dump()["extra_field"] == "kept"
    assert "extra_field" not in second.model_dump()
