"""The provider that AgentOps' instrumentation makes its spans with."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from opentelemetry import trace as otel
from opentelemetry.context import Context

from lightning_core.tracer import Trace, current_trace
from lightning_core.tracer.provider import RoutingProvider

_FIRST_LOOK = 16


@dataclass(slots=True)
class _Started:
    """The spans of a trace that are open, and some that have ended since it was last looked."""

    spans: list[otel.Span] = field(default_factory=list)
    look_at: int = _FIRST_LOOK
    """When there are so many: each start would otherwise cost as much as there are."""

    def add(self, span: otel.Span) -> None:
        self.spans.append(span)
        if len(self.spans) >= self.look_at:
            self.spans = [each for each in self.spans if each.is_recording()]
            self.look_at = max(_FIRST_LOOK, 2 * len(self.spans))


class AgentOpsProvider(RoutingProvider):
    """Gives each span to the provider of the trace in which it starts, where that is of an AgentOps tracer.

    Another tracer of this process has instrumentation of its own, and would record each call twice.
    """

    def __init__(self) -> None:
        super().__init__()
        self.fallback: otel.TracerProvider | None = None
        """Makes the spans outside of traces: that of an application that has called `agentops.init()`."""
        self._targets: WeakSet[otel.TracerProvider] = WeakSet()
        # Reentrant: the garbage collector may end a stream, and make spans of its tool calls, within these methods.
        self._lock = threading.RLock()
        self._open: WeakKeyDictionary[Trace, _Started] = WeakKeyDictionary()

    def admit(self, provider: otel.TracerProvider) -> None:
        """Let spans go to this provider; until its last holder lets go."""
        self._targets.add(provider)

    def dismiss(self, provider: otel.TracerProvider) -> None:
        """Let no more spans go there."""
        self._targets.discard(provider)

    def target(self, context: Context | None) -> otel.TracerProvider | None:
        found = super().target(context)
        if found is None:
            return self.fallback
        return found if found in self._targets else None

    def get_tracer(
        self,
        instrumenting_module_name: str,
        instrumenting_library_version: str | None = None,
        schema_url: str | None = None,
        attributes: Any = None,
    ) -> otel.Tracer:
        scope = (instrumenting_module_name, instrumenting_library_version, schema_url, attributes)
        return _RememberingTracer(self, super().get_tracer(*scope))

    def remember(self, span: otel.Span) -> None:
        """Record a span that has started."""
        trace = current_trace()
        if trace is None or not span.is_recording():
            return
        with self._lock:
            # A span leads to its trace: what is kept of one that `end_open` has seen last would stay for ever.
            if not trace.closed:
                self._open.setdefault(trace, _Started()).add(span)

    def end_open(self, trace: Trace) -> None:
        """End the spans of a trace that are open: what they are about was given up, or goes on beyond the trace."""
        with self._lock:
            left = self._open.pop(trace, None)
        for span in reversed(left.spans if left is not None else ()):
            if span.is_recording():
                span.end()


class _RememberingTracer(otel.Tracer):
    def __init__(self, provider: AgentOpsProvider, tracer: otel.Tracer) -> None:
        self._provider = provider
        self._tracer = tracer

    def start_span(self, name: str, context: Context | None = None, *args: Any, **kwargs: Any) -> otel.Span:
        span = self._tracer.start_span(name, context, *args, **kwargs)
        self._provider.remember(span)
        return span

    # OpenTelemetry's own type of context manager, which can decorate coroutine functions too, is private.
    @contextmanager
    def start_as_current_span(  # type: ignore[override]
        self, name: str, context: Context | None = None, *args: Any, **kwargs: Any
    ) -> Iterator[otel.Span]:
        with self._tracer.start_as_current_span(name, context, *args, **kwargs) as span:
            yield span
