"""The order of an attempt's spans."""

from collections.abc import Sequence

from lightning_core.types import Span


def in_order(spans: Sequence[Span]) -> list[Span]:
    """Return the spans in the order of the attempt, each span id once.

    The store's `sequence_id` decides, because clocks of different machines disagree; where it is the same, the start
    time, and then the order given. Of two spans with one id the first stays, as in the store.
    """
    ordered = sorted(spans, key=place_of)
    once = {span.span_id: span for span in reversed(ordered)}
    if len(once) == len(ordered):
        return ordered
    # Spans that were recorded without an identity share the id zero; they are not one span.
    return [span for span in ordered if once[span.span_id] is span or not span.span_id.strip("0")]


def place_of(span: Span) -> tuple[int, float]:
    """Return what the spans of an attempt are sorted by."""
    return span.sequence_id, span.start_time if span.start_time is not None else float("-inf")
