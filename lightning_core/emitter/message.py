"""A text in the trace, for people or for an algorithm to read."""

import base64
import dataclasses
import json
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import BaseModel

from lightning_core.emitter.attributes import flatten_attributes
from lightning_core.emitter.emission import emit_span, qualified_name
from lightning_core.emitter.reward import check_reward_attributes
from lightning_core.rewards import SpanLike
from lightning_core.semconv import AGL_ANNOTATION, AGL_MESSAGE, AGL_OBJECT, LightningSpanAttributes
from lightning_core.types import SpanCoreFields
from lightning_core.types.text import well_formed_value

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


_TYPE = LightningSpanAttributes.OBJECT_TYPE.value
_LITERAL = LightningSpanAttributes.OBJECT_LITERAL.value
_JSON = LightningSpanAttributes.OBJECT_JSON.value
_NAMESPACE = _TYPE.rpartition(".")[0]

_PERHAPS_NO_JSON = ("NaN", "Infinity", "\\ud")
"""What Python writes for numbers that are not finite and for halves of surrogate pairs, which strict readers refuse."""


def emit_object(object: Any, attributes: Mapping[str, Any] | None = None, propagate: bool = True) -> SpanCoreFields:
    """Record a value as a span.

    A str, bool, int, float or bytes comes back from `get_object_value` as it was. Other values are kept as JSON, and
    come back as what JSON makes of them: a tuple as a list, a dataclass or a pydantic model as a dict, a number in
    them that is not finite as None.

    Args:
        object: The value.
        attributes: More attributes of the span; nested ones are flattened with dots.
        propagate: False to make the span without recording it; then no tracer is needed.

    Returns:
        The span, without an identity.

    Raises:
        NoActiveTracer: Where no tracer is active.
        TypeError: When something in the value cannot be JSON; its type is named.
        ValueError: When the value contains itself, or `attributes` holds something that no attribute can be.
    """
    return emit_span(
        AGL_OBJECT, _encoded(object), attributes, reserved=_NAMESPACE, propagate=propagate, emitter="emit_object"
    )


def get_object_value(span: SpanLike) -> Any:
    """Read the value of an object span; None when the span carries none (or carries None).

    Raises:
        ValueError: When what the span carries cannot be read as the type that it names.
    """
    attributes = span.attributes or {}
    if _JSON in attributes:
        text, kind = attributes[_JSON], "JSON"
    elif _LITERAL in attributes:
        text, kind = attributes[_LITERAL], attributes.get(_TYPE, "str")
    else:
        return None
    try:
        return _decoded(text, kind)
    except (TypeError, ValueError) as exc:
        raise ValueError(f"span {span.name!r} has an object that cannot be read as {kind}: {exc}") from exc


def _encoded(value: Any) -> dict[str, str]:
    # A bool is an int, so it comes first; an Enum with a plain value is that value.
    for kind in (bool, str, int, float):
        if isinstance(value, kind):
            return {_TYPE: kind.__name__, _LITERAL: str(kind(value))}
    if isinstance(value, bytes):
        return {_TYPE: "bytes", _LITERAL: base64.b64encode(value).decode("ascii")}
    return {_TYPE: qualified_name(type(value)), _JSON: _json_text(value)}


def _json_text(value: Any) -> str:
    text = json.dumps(value, default=_json_of)
    if any(mark in text for mark in _PERHAPS_NO_JSON):
        text = json.dumps(well_formed_value(json.loads(text, parse_constant=lambda _: None)))
    return text


def _json_of(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    raise TypeError(
        f"emit_object cannot write a {type(value).__name__} as JSON; pass plain data (dict, list, str, number, None), "
        "a dataclass or a pydantic model"
    )


def _decoded(text: Any, kind: str) -> Any:
    if not isinstance(text, str):
        raise TypeError(f"it is of type {type(text).__name__}, not text")
    if kind == "bytes":
        return base64.b64decode(text, validate=True)
    if kind == "bool" and text.lower() in ("true", "false"):
        return text.lower() == "true"
    if kind in _READERS:
        return _READERS[kind](text)
    raise ValueError(f"{text!r} is none")


_READERS: Mapping[str, Callable[[str], Any]] = {"JSON": json.loads, "str": str, "int": int, "float": float}


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
        TypeError: When `annotation` is not a mapping.
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
