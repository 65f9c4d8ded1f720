from .base import (
    DummyTracer as DummyTracer,
    Tracer as Tracer,
    clear_active_tracer as clear_active_tracer,
    get_active_tracer as get_active_tracer,
    set_active_tracer as set_active_tracer,
)
from .otel import (
    OtelTracer as OtelTracer,
)
from .trace import (
    Trace as Trace,
    current_trace as current_trace,
    with_current_trace as with_current_trace,
)

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
