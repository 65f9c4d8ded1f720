"""Who takes what is emitted here: the active sink travels in the OpenTelemetry context, never in a global."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol, cast

from opentelemetry.context import Context, create_key, get_value, set_value

from lightning_core.types import SpanCoreFields, TraceStatus

if TYPE_CHECKING:
    from lightning_core.emitter.recording import SpanRecordingContext

_ACTIVE_SINK = create_key("lightning-active-sink")


class SpanSink(Protocol):
    """Takes emitted spans; every tracer is one."""

    def create_span(
        self,
        name: str,
        attributes: Mapping[str, Any] | None = None,
        timestamp: float | None = None,
        status: TraceStatus | None = None,
    ) -> SpanCoreFields:
        """Record a span that starts and ends at `timestamp` (seconds since the epoch), or now."""
        ...

    def operation_context(
        self,
        name: str,
        attributes: Mapping[str, Any] | None = None,
        start_time: float | None = None,
        end_time: float | None = None,
    ) -> "AbstractContextManager[SpanRecordingContext]":
        """Record a span around a `with` block; times in seconds since the epoch."""
        ...


def get_active_sink() -> SpanSink | None:
    """Find the sink of the calling context.

    Tasks that were started where a sink is active have it too, and so have threads, as far as OpenTelemetry's
    threading instrumentation carries the context into them.

    Returns:
        The sink, or None where none is active.
    """
    return cast("SpanSink | None", get_value(_ACTIVE_SINK))


def with_active_sink(sink: SpanSink | None, context: Context | None = None) -> Context:
    """Make an OpenTelemetry context in which `sink` is the active one; attaching it is up to the caller.

    Args:
        sink: The sink; None for a context without one.
        context: What the new context adds to; None for the current one.
    """
    return set_value(_ACTIVE_SINK, sink, context)
