"""Spans to an OpenTelemetry collector too, when the environment names one.

The environment variables are OpenTelemetry's own. Nothing here is needed by Lightning Core itself: the exporter is
whatever distribution of OpenTelemetry's is installed, and a collector that is slow or gone costs the agents nothing.
"""

import importlib.metadata
import logging
import os
import threading
from weakref import WeakKeyDictionary

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from lightning_core.adapter.genai import INFERENCE_OPERATIONS, OPERATION_NAME
from lightning_core.tracer.trace import Trace
from lightning_core.types import Span

logger = logging.getLogger(__name__)

_GROUP = "opentelemetry_traces_exporter"
_PROTOCOLS = {"http/protobuf": "otlp_proto_http", "grpc": "otlp_proto_grpc"}
"""Protocol -> name of the exporter's entry point."""


class SpanExport:
    """Sends spans from a thread of its own; what the collector cannot take in time is dropped, and that is logged.

    Args:
        exporter: Sends a batch of spans.
    """

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter
        self._processor = BatchSpanProcessor(exporter)
        self._resources: WeakKeyDictionary[Trace, Resource] = WeakKeyDictionary()

    def add(self, span: ReadableSpan, recorded: Span, trace: Trace) -> None:
        """Send a finished span, sooner or later. Never blocks; never raises for what the span is.

        Args:
            span: The span.
            recorded: What the trace has of it.
            trace: The trace.
        """
        try:
            resource = self._resources.get(trace)
            if resource is None:
                source = recorded.resource
                resource = self._resources[trace] = Resource(dict(source.attributes), source.schema_url)
            self._processor.on_end(readable(recorded, resource=resource, like=span))
        except Exception as exc:
            logger.error("lightning.span_not_exported span=%r", span.name, exc_info=exc)

    def close(self, timeout_seconds: float) -> None:
        """Send what is left, for at most so long, and stop.

        What is under way then is given up; its thread is a daemon, and ends with the exporter's own timeout.
        """
        closing = threading.Thread(target=self._processor.shutdown, name="lightning-export-end", daemon=True)
        closing.start()
        closing.join(timeout_seconds)
        if closing.is_alive():
            logger.warning(
                "lightning.export_incomplete timeout_seconds=%g; the collector did not take all spans in time, "
                "the store has them",
                timeout_seconds,
            )
            self._exporter.shutdown()


def readable(span: Span, *, resource: Resource, like: ReadableSpan | None = None) -> ReadableSpan:
    """Make the span that OpenTelemetry's exporters take.

    Args:
        span: The span.
        resource: Its resource.
        like: What tells its instrumentation and its kind. A model call is a client's, and any other span of which
            that is not known internal.
    """
    is_call = span.attributes.get(OPERATION_NAME) in INFERENCE_OPERATIONS
    kind = SpanKind.INTERNAL if like is None else like.kind
    return ReadableSpan(
        name=span.name,
        context=_context(span.trace_id, span.span_id),
        parent=None if span.parent_id is None else _context(span.trace_id, span.parent_id),
        resource=resource,
        attributes={name: value for name, value in span.attributes.items() if value is not None},
        events=[
            Event(each.name, dict(each.attributes), None if each.timestamp is None else nanoseconds(each.timestamp))
            for each in span.events
        ],
        links=[
            Link(_context(each.context.trace_id, each.context.span_id), dict(each.attributes)) for each in span.links
        ],
        kind=SpanKind.CLIENT if is_call else kind,
        status=Status(StatusCode[span.status.status_code], span.status.description),
        start_time=None if span.start_time is None else nanoseconds(span.start_time),
        end_time=None if span.end_time is None else nanoseconds(span.end_time),
        instrumentation_scope=None if like is None else like.instrumentation_scope,
    )


def nanoseconds(seconds: float) -> int:
    """Convert seconds since the epoch to OpenTelemetry's nanoseconds."""
    return round(seconds * 1_000_000_000)


def _context(trace_id: str, span_id: str) -> SpanContext:
    return SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))


def export_from_environment() -> SpanExport | None:
    """Make the export that the environment asks for; None when it asks for none.

    It does with `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT` or `OTEL_EXPORTER_OTLP_ENDPOINT`, unless `OTEL_TRACES_EXPORTER`
    names other exporters only. When the exporter is not installed or does not work, a warning says so, and None is
    returned.
    """
    if _variable("OTLP_TRACES_ENDPOINT", "OTLP_ENDPOINT") is None:
        return None
    exporters = os.environ.get("OTEL_TRACES_EXPORTER", "").strip() or "otlp"
    if not any(name.strip().startswith("otlp") for name in exporters.split(",")):
        return None
    protocol = _variable("OTLP_TRACES_PROTOCOL", "OTLP_PROTOCOL") or "http/protobuf"
    name = _PROTOCOLS.get(protocol, protocol)
    try:
        offers = [*importlib.metadata.entry_points(group=_GROUP, name=name)]
        return SpanExport(offers[0].load()())
    except Exception as exc:
        logger.warning(
            "lightning.export_off protocol=%s cause=%r; an OTLP endpoint is set, and no exporter of this protocol "
            "works: pip install opentelemetry-exporter-otlp-proto-http, or -grpc for the protocol grpc",
            protocol,
            exc,
        )
        return None


def _variable(*names: str) -> str | None:
    """Return the first that is set; the part after `OTEL_EXPORTER_` is given."""
    for name in names:
        if value := os.environ.get(f"OTEL_EXPORTER_{name}", "").strip():
            return value
    return None
