"""A text in the trace, for people or for an algorithm to read."""

from collections.abc import Mapping
from typing import Any

from lightning_core.emitter.emission import emit_span
from lightning_core.emitter.span_like import SpanLike
from lightning_core.semconv import AGL_MESSAGE, LightningSpanAttributes
from lightning_core.types import SpanCoreFields

_BODY = LightningSpanAttributes.MESSAGE_BODY.value


def emit_message(message: str, attributes: Mapping[str, Any] | None = None, propagate: bool = True) -> SpanCoreFields:
    """Record a text as a span.

    Args:
        message: The text.
        attributes: More attributes of the span; nested ones are flattened with dots.
        propagate: False to make the span without recording it; then no tracer is needed.

    Returns:
        The span, without an identity.

    Raises:
        NoActiveTracer: Where no tracer is active.
        TypeError: When `message` is not a string.
        ValueError: When `attributes` holds something that no attribute can be.
    """
    if not isinstance(message, str):
        raise TypeError(
            f"a message must be a str, got {type(message).__name__}; turn it into text, or pass it in `attributes`"
        )
    return emit_span(
        AGL_MESSAGE, {_BODY: message}, attributes, reserved=_BODY, propagate=propagate, emitter="emit_message"
    )


def get_message_value(span: SpanLike) -> str | None:
    """Read the text of a message span.

    Returns:
        The text, or None when the span carries no message.

    Raises:
        TypeError: When what the span carries as a message is not a string.
    """
    message = (span.attributes or {}).get(_BODY)
    if message is None or isinstance(message, str):
        return message
    raise TypeError(f"span {span.name!r} has a {type(message).__name__} as {_BODY!r}, where a str belongs")
