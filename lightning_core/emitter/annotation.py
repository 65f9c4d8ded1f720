"""Something said about a rollout, or about a part of it."""

from collections.abc import Mapping
from typing import Any

from lightning_core.emitter.attributes import flatten_attributes
from lightning_core.emitter.emission import emit_span
from lightning_core.emitter.reward import check_reward_attributes
from lightning_core.semconv import AGL_ANNOTATION
from lightning_core.types import SpanCoreFields


def emit_annotation(annotation: Mapping[str, Any], propagate: bool = True) -> SpanCoreFields:
    """Record names and values as a span: tags, metadata, what a person or another model thought of it.

    Args:
        annotation: The span's attributes; nested ones are flattened with dots. Rewards are better told by
            `emit_reward`; here they have to be complete and finite too.
        propagate: False to make the span without recording it; then no tracer is needed.

    Returns:
        The span, without an identity.

    Raises:
        NoActiveTracer: Where no tracer is active.
        TypeError: When `annotation` is no mapping.
        ValueError: When there is nothing in `annotation`, or something that no attribute can be.
    """
    if not isinstance(annotation, Mapping):
        raise TypeError(
            f"an annotation is a mapping of names to values, got {type(annotation).__name__}; "
            "use emit_message for text, emit_object for another value"
        )
    if not annotation:
        raise ValueError("there is nothing in an empty annotation; name at least one value")
    attributes = flatten_attributes(annotation)
    check_reward_attributes(attributes)
    return emit_span(AGL_ANNOTATION, attributes, propagate=propagate, emitter="emit_annotation")
