"""A span that is open: what happens in it is recorded on it."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from lightning_core.emitter.attributes import flatten_attributes, text_of
from lightning_core.emitter.emission import SpanRecordingContext, exception_attributes
from lightning_core.types import SpanCoreFields, StatusCode, TraceStatus

OK = TraceStatus(status_code="OK")
"""The status of a span that has no other one."""


class LocalRecording:
    """Records a span that goes nowhere.

    Args:
        name: The span's name.
        attributes: The attributes that it begins with.
        start_time: When it began, in seconds since the epoch; None for now.
    """

    def __init__(self, name: str, attributes: Mapping[str, Any] | None = None, start_time: float | None = None) -> None:
        self._name = name
        self._attributes = flatten_attributes(attributes or {})
        self._start_time = time.time() if start_time is None else start_time
        self._end_time: float | None = None
        self._status = OK

    def record_exception(self, exception: BaseException) -> None:
        """See `SpanRecordingContext`; the exception becomes attributes."""
        self.record_attributes(exception_attributes(exception))
        self.record_status("ERROR", failure_text(exception))

    def record_attributes(self, attributes: Mapping[str, Any]) -> None:
        """See `SpanRecordingContext`."""
        self._add(flatten_attributes(attributes))

    def record_status(self, status_code: StatusCode, description: str | None = None) -> None:
        """See `SpanRecordingContext`."""
        self._status = TraceStatus(status_code=status_code, description=description)

    def end(self, end_time: float | None = None) -> None:
        """Record that the span ends, in seconds since the epoch; None for now."""
        self._end_time = time.time() if end_time is None else end_time

    def get_recorded_span(self) -> SpanCoreFields:
        """See `SpanRecordingContext`."""
        return SpanCoreFields(
            name=self._name,
            status=self._status,
            attributes=self._attributes,
            start_time=self._start_time,
            end_time=self._end_time,
        )

    def _add(self, attributes: Mapping[str, Any]) -> None:
        """Take flat attributes."""
        self._attributes |= attributes


@contextmanager
def record_locally(
    name: str,
    attributes: Mapping[str, Any] | None = None,
    start_time: float | None = None,
    end_time: float | None = None,
) -> Iterator[LocalRecording]:
    """Make a span of a `with` block without passing it to a tracer.

    Args:
        name: The span's name.
        attributes: The attributes that it begins with; nested ones are flattened with dots.
        start_time: When it began, in seconds since the epoch; None for now.
        end_time: When it is said to end; None for when the block does.
    """
    recording = LocalRecording(name, attributes, start_time)
    try:
        with failures_recorded(recording):
            yield recording
    finally:
        recording.end(end_time)


@contextmanager
def failures_recorded(recording: SpanRecordingContext) -> Iterator[None]:
    """Record what a `with` block raises, cancellation included, and let it go on."""
    try:
        yield
    except GeneratorExit:
        # The consumer stopped iterating; nothing failed.
        raise
    except BaseException as exc:
        recording.record_exception(exc)
        raise


def failure_text(exception: BaseException) -> str:
    """Say in one text what failed: the exception's own, or the name of its type where it has none."""
    return text_of(exception) or type(exception).__name__
