"""An open span of OpenTelemetry's."""

from collections.abc import Mapping
from typing import Any

from opentelemetry import trace as otel

from lightning_core.emitter.exception import exception_attributes
from lightning_core.emitter.recording import LocalRecording, failure_text
from lightning_core.types import TraceStatus


class OtelRecording(LocalRecording):
    """Records on a span, and keeps what was recorded.

    Args:
        span: The span; it has its first attributes.
        name: Its name.
        attributes: Its first attributes.
        start_time: When it began, in seconds since the epoch.
    """

    def __init__(self, span: otel.Span, name: str, attributes: Mapping[str, Any], start_time: float) -> None:
        super().__init__(name, attributes, start_time)
        self._span = span

    def record_exception(self, exception: BaseException) -> None:
        """See `SpanRecordingContext`; the exception becomes an event of the span."""
        self._span.add_event("exception", exception_attributes(exception))
        self.record_status("ERROR", failure_text(exception))

    def end(self, end_time: float | None = None) -> None:
        """End the span, in seconds since the epoch; None for now."""
        super().end(end_time)
        ended = self.get_recorded_span()
        # OpenTelemetry takes an OK as the last word; here the last word counts.
        self._span.set_status(otel_status(ended.status))
        self._span.end(None if ended.end_time is None else nanoseconds(ended.end_time))

    def _add(self, attributes: Mapping[str, Any]) -> None:
        super()._add(attributes)
        self._span.set_attributes(attributes)


def otel_status(status: TraceStatus) -> otel.Status:
    """Convert a status of ours."""
    code = otel.StatusCode[status.status_code]
    # OpenTelemetry has descriptions for errors only.
    return otel.Status(code, status.description if code is otel.StatusCode.ERROR else None)


def nanoseconds(seconds: float) -> int:
    """Convert seconds since the epoch to OpenTelemetry's nanoseconds."""
    return round(seconds * 1_000_000_000)
