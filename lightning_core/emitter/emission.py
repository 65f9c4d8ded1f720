"""Spans that are emitted: where they go, exceptions as spans, and spans that are open."""

import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol, cast

from opentelemetry.context import Context, create_key, get_value, set_value

from lightning_core.emitter.attributes import flatten_attributes, text_of
from lightning_core.errors import NoActiveTracer
from lightning_core.semconv import AGL_EXCEPTION
from lightning_core.types import SpanCoreFields, StatusCode, TraceStatus

_ACTIVE_SINK = create_key("lightning-active-sink")


class SpanRecordingContext(Protocol):
    """Says what happened in a span while it is open. The caller that opened the span ends it."""

    def record_exception(self, exception: BaseException) -> None:
        """Record an exception, and that the span failed."""
        ...

    def record_attributes(self, attributes: Mapping[str, Any]) -> None:
        """Add attributes; nested ones are flattened with dots, and the last value of a name counts.

        Raises:
            ValueError: For an attribute that no span can have; it is named.
        """
        ...

    def record_status(self, status_code: StatusCode, description: str | None = None) -> None:
        """Say whether it went well; the last one counts. Without any, a span that ends is OK."""
        ...

    def get_recorded_span(self) -> SpanCoreFields:
        """Return the span, without an identity, as it is now; it has no `end_time` while it is open."""
        ...


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
    ) -> AbstractContextManager[SpanRecordingContext]:
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


def require_active_sink(emitter: str) -> SpanSink:
    """Find who takes what is emitted here.

    Args:
        emitter: The function that people call, for the error.

    Raises:
        NoActiveTracer: When no tracer is active.
    """
    sink = get_active_sink()
    if sink is None:
        raise NoActiveTracer(
            f"{emitter} found no active tracer; call it from an agent while its rollout runs, or inside of "
            "`async with tracer.trace_context()` (a thread that was started before does not know the trace), "
            "or pass propagate=False to make the span without recording it"
        )
    return sink


def emit_span(
    name: str,
    own: Mapping[str, Any],
    extra: Mapping[str, Any] | None = None,
    *,
    reserved: str = "",
    propagate: bool,
    emitter: str,
) -> SpanCoreFields:
    """Give a span to the active tracer, or only make it.

    Args:
        name: The span's name.
        own: The attributes that the emitter makes; flat.
        extra: The attributes that its caller adds; may be nested.
        reserved: The name, or the first part of the names, that only the emitter writes.
        propagate: False to make the span without passing it to a tracer.
        emitter: The function that people call, for the error.

    Raises:
        NoActiveTracer: When no tracer is active.
        ValueError: When `extra` holds something that no attribute can be, or a reserved name.
    """
    attributes = dict(own)
    if extra:
        added = flatten_attributes(extra)
        for attribute in added:
            if attribute == reserved or attribute.startswith(f"{reserved}."):
                raise ValueError(f"only {emitter} itself writes {attribute!r}; leave it out of `attributes`")
        attributes |= added
    if not propagate:
        now = time.time()
        return SpanCoreFields(name=name, attributes=attributes, start_time=now, end_time=now)
    return require_active_sink(emitter).create_span(name, attributes)


def emit_exception(
    exception: BaseException, attributes: Mapping[str, Any] | None = None, propagate: bool = True
) -> SpanCoreFields:
    """Record an exception as a span, with its type, message and stack trace (its causes included).

    The exception goes on as before, and the span's own status is OK: it was recorded as it should be.

    Args:
        exception: The exception.
        attributes: More attributes of the span; nested ones are flattened with dots.
        propagate: False to make the span without recording it; then no tracer is needed.

    Returns:
        The span, without an identity.

    Raises:
        NoActiveTracer: Where no tracer is active.
        TypeError: When `exception` is not an exception.
        ValueError: When `attributes` holds something that no attribute can be.
    """
    if not isinstance(exception, BaseException):
        raise TypeError(f"emit_exception takes an exception, got {type(exception).__name__}; use emit_message for text")
    return emit_span(
        AGL_EXCEPTION,
        exception_attributes(exception),
        attributes,
        reserved="exception",
        propagate=propagate,
        emitter="emit_exception",
    )


def exception_attributes(exception: BaseException) -> dict[str, str]:
    """Make OpenTelemetry's attributes of an exception: its type, message and stack trace, causes included."""
    return {
        "exception.type": qualified_name(type(exception)),
        "exception.message": text_of(exception),
        "exception.stacktrace": "".join(traceback.format_exception(exception)),
    }


def qualified_name(kind: type) -> str:
    """Return the name of a class, with its module unless that is `builtins`."""
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


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
