"""What records the spans of an agent, each in the trace where it started."""

from typing import TYPE_CHECKING, Any

from lightning_core.tracer.base import Tracer, clear_active_tracer, get_active_tracer, set_active_tracer
from lightning_core.tracer.dummy import DummyTracer
from lightning_core.tracer.trace import Trace, current_trace, with_current_trace

if TYPE_CHECKING:
    from lightning_core.tracer.otel import OtelTracer

__all__ = [
    "DummyTracer",
    "OtelTracer",
    "Trace",
    "Tracer",
    "clear_active_tracer",
    "current_trace",
    "get_active_tracer",
    "set_active_tracer",
    "with_current_trace",
]


def __getattr__(name: str) -> Any:
    # The OpenTelemetry SDK takes long to import; whoever never traces should not wait for it.
    if name == "OtelTracer":
        from lightning_core.tracer.otel import OtelTracer

        return OtelTracer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
