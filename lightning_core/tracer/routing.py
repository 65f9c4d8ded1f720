"""A provider for instrumentors and for agents: each span goes to the tracer in whose trace it starts.

An instrumentor patches a library for the whole process, with one provider. Several tracers may be at work in it,
and after the last one is torn down not every instrumentor takes its patches back. So an instrumentor is given a
provider that decides for each span anew, and that can be closed.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast
from weakref import WeakKeyDictionary

from opentelemetry import trace as otel
from opentelemetry.context import Context, create_key, get_value, set_value

_PROVIDER = create_key("lightning-provider")


def with_provider(provider: otel.TracerProvider, context: Context) -> Context:
    """Make a context in which spans of instrumentors go to this provider."""
    return set_value(_PROVIDER, provider, context)


def remember_provider(span: otel.Span, provider: otel.TracerProvider | None) -> None:
    """Send the spans of instrumentors that begin below this one to this provider."""
    setattr(span, _PROVIDER, provider)


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
        """Make no more spans, whoever still asks for some."""
        self.closed = True

    def open(self) -> None:
        """Make spans again."""
        self.closed = False

    def target(self, context: Context | None) -> otel.TracerProvider | None:
        """Find the provider for a span that starts in this context, or in the current one; None for no span."""
        if self.closed:
            return None
        # Whoever makes a context by hand often puts nothing but the parent span into it.
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
