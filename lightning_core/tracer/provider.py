"""The OpenTelemetry SDK's side of the tracer: from a span that ends to the trace in which it started."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast
from weakref import WeakKeyDictionary, WeakValueDictionary, ref

from opentelemetry import trace as otel
from opentelemetry.context import Context, create_key, get_current, get_value, set_value
from opentelemetry.sdk.trace import ReadableSpan, Span as SdkSpan, SpanLimits, SpanProcessor, TracerProvider, sampling
from opentelemetry.sdk.trace.id_generator import IdGenerator

from lightning_core.semconv import LightningResourceAttributes
from lightning_core.tracer.export import SpanExport
from lightning_core.tracer.trace import Trace
from lightning_core.types import OtelResource, Span

_PROVIDER = create_key("lightning-provider")


def with_provider(provider: otel.TracerProvider, context: Context) -> Context:
    """Make a context in which spans of instrumentors go to this provider."""
    return set_value(_PROVIDER, provider, context)


def become_global_provider() -> None:
    """Record what agents make with `opentelemetry.trace.get_tracer`, unless the application has a provider of its own.

    OpenTelemetry lets a global provider be set once in a process. So it stays, also when no tracer is left; outside of
    traces it makes no spans.
    """
    if isinstance(otel.get_tracer_provider(), otel.ProxyTracerProvider):
        otel.set_tracer_provider(RoutingProvider())


class RoutingProvider(otel.TracerProvider):
    """Gives each span to the provider of the trace in which it starts; outside of a trace there is no span."""

    def __init__(self) -> None:
        self.closed = False

    def get_tracer(
        self,
        instrumenting_module_name: str,
        instrumenting_library_version: str | None = None,
        schema_url: str | None = None,
        attributes: Any = None,
    ) -> otel.Tracer:
        """See `opentelemetry.trace.TracerProvider`."""
        scope = (instrumenting_module_name, instrumenting_library_version, schema_url, attributes)
        return _RoutingTracer(self, scope)

    def close(self) -> None:
        """Make no more spans."""
        self.closed = True

    def open(self) -> None:
        """Make spans again."""
        self.closed = False

    def target(self, context: Context | None) -> otel.TracerProvider | None:
        """Find the provider for a span that starts in this context, or in the current one; None for no span."""
        if self.closed:
            return None
        # A context made by hand often has only the parent span.
        found = get_value(_PROVIDER, context) or get_value(_PROVIDER)
        return cast("otel.TracerProvider | None", found or getattr(otel.get_current_span(context), _PROVIDER, None))


class _RoutingTracer(otel.Tracer):
    def __init__(self, provider: RoutingProvider, scope: tuple[Any, ...]) -> None:
        self._provider = provider
        self._scope = scope
        self._tracers: WeakKeyDictionary[otel.TracerProvider, otel.Tracer] = WeakKeyDictionary()

    def start_span(self, name: str, context: Context | None = None, *args: Any, **kwargs: Any) -> otel.Span:
        return self._tracer(context).start_span(name, context, *args, **kwargs)

    # OpenTelemetry's own type of context manager, which can decorate coroutine functions too, is private.
    @contextmanager
    def start_as_current_span(  # type: ignore[override]
        self, name: str, context: Context | None = None, *args: Any, **kwargs: Any
    ) -> Iterator[otel.Span]:
        with self._tracer(context).start_as_current_span(name, context, *args, **kwargs) as span:
            yield span

    def _tracer(self, context: Context | None) -> otel.Tracer:
        target = self._provider.target(context)
        if target is None:
            return _NO_TRACER
        tracer = self._tracers.get(target)
        if tracer is None:
            tracer = self._tracers[target] = target.get_tracer(*self._scope)
        return tracer


_NO_TRACER = otel.NoOpTracer()


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
        self._converted_resource = OtelResource.from_opentelemetry(self.resource)
        super().add_span_processor(_TraceRecorder(self, key, export))

    def resource_of(self, rollout_id: str | None, attempt_id: str | None, tracer_name: str) -> OtelResource:
        """Return the resource of the spans of a trace: what produces them, and which attempt they belong to."""
        base = self._converted_resource
        if rollout_id is None:
            return base
        attributes = {
            LightningResourceAttributes.ROLLOUT_ID.value: rollout_id,
            LightningResourceAttributes.ATTEMPT_ID.value: attempt_id,
            LightningResourceAttributes.TRACER_NAME.value: tracer_name,
        }
        return OtelResource(attributes={**base.attributes, **attributes}, schema_url=base.schema_url)


class _TraceRecorder(SpanProcessor):
    """Hands each span to the trace in which it started."""

    def __init__(self, provider: RecordingProvider, key: str, export: SpanExport | None) -> None:
        # The provider holds its processors.
        self._provider = ref(provider)
        self._key = key
        self._export = export
        # The SDK ends a span with a copy of it. A span that is never ended goes with its last reference.
        self._open: WeakValueDictionary[int, SdkSpan] = WeakValueDictionary()

    def on_start(self, span: SdkSpan, parent_context: Context | None = None) -> None:
        """Remember on the span which trace it belongs to."""
        trace = self._trace_of(parent_context) if parent_context is not None else None
        trace = trace or self._trace_of(get_current())
        if trace is not None:
            setattr(span, self._key, trace)
            setattr(span, _PROVIDER, self._provider())  # for what instrumentors begin below it
            self._open[span.get_span_context().span_id] = span

    def _trace_of(self, context: Context) -> Trace | None:
        # A context made by hand often has only the parent span.
        found = get_value(self._key, context) or getattr(otel.get_current_span(context), self._key, None)
        return cast("Trace | None", found)

    def on_end(self, span: ReadableSpan) -> None:
        """Record the span; in any thread, and never with an error for the code that ended it."""
        context = span.get_span_context()
        started = self._open.pop(context.span_id, None) if context is not None else None
        if started is None:
            return
        trace: Trace = getattr(started, self._key)
        ids = (trace.rollout_id or "", trace.attempt_id or "")
        try:
            recorded = Span.from_opentelemetry(span, *ids, 0, resource=trace.resource)
        except Exception as exc:
            trace.drop(span.name, exc)
        else:
            if trace.record(recorded) and self._export is not None:
                self._export.add(span, recorded, trace)


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
