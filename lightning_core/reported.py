"""Spans that were written with the key of an attempt, which the agent has, rather than by its runner."""

from collections.abc import Mapping
from typing import Any, Literal

from lightning_core.semconv import LightningSpanAttributes
from lightning_core.types.frozen import clone
from lightning_core.types.span import Span

_REPORTED = LightningSpanAttributes.REPORTED.value


def as_reported(span: Span, when: Literal["live", "late"] = "live") -> Span:
    """Return a copy of a span that is marked as reported.

    Args:
        span: The span.
        when: `late` for a span that came after the end of its attempt.
    """
    return clone(span, attributes={**span.attributes, _REPORTED: when})


def is_reported(attributes: Mapping[str, Any] | None) -> bool:
    """Tell by a span's attributes whether it was reported."""
    return attributes is not None and _REPORTED in attributes


def is_late(attributes: Mapping[str, Any] | None) -> bool:
    """Tell by a span's attributes whether it was reported after the end of its attempt."""
    return attributes is not None and attributes.get(_REPORTED) == "late"
