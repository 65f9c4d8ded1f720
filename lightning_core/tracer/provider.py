"""The OpenTelemetry SDK's side of the tracer: from a span that ends to the trace in which it started."""

import os
from typing import cast
from weakref import WeakValueDictionary, ref

from opentelemetry import trace as otel
from opentelemetry.context import Context, get_current, get_value
from opentelemetry.sdk.resources import Resource as SdkResource
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, SpanProcessor, TracerProvider, sampling
from opentelemetry.sdk.trace import Span as SdkSpan
from opentelemetry.sdk.trace.id_generator import IdGenerator

from lightning_core.tracer.export import SpanExport
from lightning_core.tracer.routing import remember_provider
from lightning_core.tracer.trace import Trace
from lightning_core.types import OtelResource, Span


class RecordingProvider(TracerProvider):
    """A provider whose spans are recorded in the traces that they start in.

    Nothing is sampled away or cut short, whatever the environment says.

    Args:
        key: Under which a context has its trace.
        export: Where the spans go besides, if anywhere.
    """

    def __init__(self, key: str, export: SpanExport | None) -> None:
        unlimited = SpanLimits.UNSET
        super().__init__(
            sampler=sampling.ALWAYS_ON,
            shutdown_on_exit=False,
            id_generator=_RandomIds(),
            span_limits=SpanLimits(
                max_attributes=unlimited,
                max_events=unlimited,
                max_links=unlimited,
                max_span_attributes=unlimited,
                max_event_attributes=unlimited,
                max_link_attributes=unlimited,
                max_attribute_length=unlimited,
                max_span_attribute_length=unlimited,
            ),
        )
        self._converted: tuple[SdkResource, OtelResource] | None = None
        super().add_span_processor(_TraceRecorder(self, key, export))
        self.is_observed = export is not None
        """Whether anybody but its traces sees its spans."""

    def add_span_processor(self, span_processor: SpanProcessor) -> None:
        """See `opentelemetry.sdk.trace.TracerProvider`."""
        self.is_observed = True
        super().add_span_processor(span_processor)

    def converted(self, resource: SdkResource) -> OtelResource:
        """Convert a resource. All spans of a provider share one, so that the last one is remembered."""
        known = self._converted
        if known is None or known[0] is not resource:
            known = self._converted = (resource, OtelResource.from_opentelemetry(resource))
        return known[1]


def trace_in(key: str, context: Context) -> Trace | None:
    """Find the trace that a context has under a key."""
    return cast("Trace | None", get_value(key, context))


class _TraceRecorder(SpanProcessor):
    """Hands each span to the trace in which it started."""

    def __init__(self, provider: RecordingProvider, key: str, export: SpanExport | None) -> None:
        # The provider holds its processors.
        self._provider = ref(provider)
        self._key = key
        self._export = export
        # The SDK ends a span with a copy of it. A span that is never ended goes when nobody else holds it.
        self._open: WeakValueDictionary[int, SdkSpan] = WeakValueDictionary()

    def on_start(self, span: SdkSpan, parent_context: Context | None = None) -> None:
        """Remember on the span which trace it belongs to."""
        trace = self._trace_of(parent_context) if parent_context is not None else None
        trace = trace or self._trace_of(get_current())
        if trace is not None:
            setattr(span, self._key, trace)
            remember_provider(span, self._provider())
            self._open[span.get_span_context().span_id] = span

    def _trace_of(self, context: Context) -> Trace | None:
        # Whoever makes a context by hand often puts nothing but the parent span into it.
        return trace_in(self._key, context) or getattr(otel.get_current_span(context), self._key, None)

    def on_end(self, span: ReadableSpan) -> None:
        """Record the span; in any thread, and never with an error for the code that ended it."""
        context = span.get_span_context()
        started = self._open.pop(context.span_id, None) if context is not None else None
        if started is None:
            return
        trace: Trace = getattr(started, self._key)
        if trace.closed:
            trace.drop(span.name)
            return
        provider = self._provider()
        resource = None if provider is None else provider.converted(span.resource)
        try:
            recorded = Span.from_opentelemetry(
                span, trace.rollout_id or "", trace.attempt_id or "", 0, resource=resource
            )
        except Exception as exc:
            trace.discard(span.name, exc)
        else:
            trace.record(recorded)
            if self._export is not None:
                self._export.add(span, trace)


class _RandomIds(IdGenerator):
    """Random ids that agents have no part in.

    The SDK's own generator uses `random`, which agents seed: then ids repeat, within one attempt even, and a span
    with an id that the store knows counts as stored.
    """

    def generate_span_id(self) -> int:
        return _random_id(8)

    def generate_trace_id(self) -> int:
        return _random_id(16)

    def is_trace_id_random(self) -> bool:
        return True


def _random_id(size_bytes: int) -> int:
    # 0 is OpenTelemetry's mark of an invalid id.
    return int.from_bytes(os.urandom(size_bytes), "big") or 1
