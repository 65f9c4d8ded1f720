"""What the readers need of a span."""

from collections.abc import Mapping
from typing import Any, Protocol


class SpanLike(Protocol):
    """A `lightning_core.types.Span` or an OpenTelemetry `ReadableSpan`."""

    @property
    def name(self) -> str:
        """The span's name."""
        ...

    @property
    def attributes(self) -> Mapping[str, Any] | None:
        """The span's attributes."""
        ...
