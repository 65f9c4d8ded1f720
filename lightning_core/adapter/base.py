"""What an adapter is."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Generic, TypeVar

from lightning_core.types import Span

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

FromT = TypeVar("FromT")
ToT = TypeVar("ToT")


class Adapter(ABC, Generic[FromT, ToT]):
    """Turns data of one form into another. An instance can be called like a function.

    An adapter does no I/O and keeps nothing of what it was given, so one instance serves any number of traces and
    threads. It never changes its input; its output may share parts with it.
    """

    def __call__(self, source: FromT, /) -> ToT:
        """Do what `adapt` does."""
        return self.adapt(source)

    @abstractmethod
    def adapt(self, source: FromT, /) -> ToT:
        """Return the data in the other form."""


class TraceAdapter(Adapter[Sequence[Span], ToT], Generic[ToT]):
    """Turns the spans of one attempt into another form."""


class OtelTraceAdapter(Adapter[Sequence["ReadableSpan"], ToT], Generic[ToT]):
    """Turns OpenTelemetry's own spans into another form."""
