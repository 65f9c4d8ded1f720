"""An exception in the trace."""

import traceback
from collections.abc import Mapping
from typing import Any

from lightning_core.emitter.attributes import text_of
from lightning_core.emitter.emission import emit_span
from lightning_core.semconv import AGL_EXCEPTION
from lightning_core.types import SpanCoreFields

# OpenTelemetry's semantic conventions for exceptions.
_NAMESPACE = "exception"
_TYPE = f"{_NAMESPACE}.type"
_MESSAGE = f"{_NAMESPACE}.message"
_STACKTRACE = f"{_NAMESPACE}.stacktrace"


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
        reserved=_NAMESPACE,
        propagate=propagate,
        emitter="emit_exception",
    )


def exception_attributes(exception: BaseException) -> dict[str, str]:
    """Make OpenTelemetry's attributes of an exception: its type, message and stack trace, causes included."""
    return {
        _TYPE: _qualified_name(type(exception)),
        _MESSAGE: text_of(exception),
        _STACKTRACE: "".join(traceback.format_exception(exception)),
    }


def _qualified_name(kind: type[BaseException]) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
