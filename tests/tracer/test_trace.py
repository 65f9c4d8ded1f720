import logging
import threading

import pytest

from lightning_core.tracer import Trace
from lightning_core.types import Span


def span(name: str) -> Span:
    return Span.from_attributes(attributes={}, name=name)


def test_spans_without_a_store_count_from_1() -> None:
    trace = Trace()
    for name in "abc":
        trace.record(span(name))
    assert [(recorded.name, recorded.sequence_id) for recorded in trace.spans] == [("a", 1), ("b", 2), ("c", 3)]


def test_closed_trace_drops_counts_and_warns_once(caplog: pytest.LogCaptureFixture) -> None:
    trace = Trace(rollout_id="ro-1", attempt_id="at-1")
    trace.record(span("in time"))
    trace.close()
    trace.close()
    with caplog.at_level(logging.WARNING):
        trace.record(span("late"))
        trace.record(span("later"))
    assert [recorded.name for recorded in trace.spans] == ["in time"]
    assert trace.dropped == 2
    assert [record.getMessage() for record in caplog.records] == [
        "lightning.late_span_dropped trace=None rollout_id=ro-1 attempt_id=at-1 span='late'; the trace is closed, and "
        "whatever else its threads and tasks still emit is dropped and counted too"
    ]


def test_spans_from_many_threads_are_either_recorded_or_counted() -> None:
    trace = Trace()
    start = threading.Barrier(9)

    def emit() -> None:
        start.wait(timeout=30)
        for _ in range(200):
            trace.record(span("s"))

    threads = [threading.Thread(target=emit) for _ in range(8)]
    for thread in threads:
        thread.start()
    start.wait(timeout=30)
    trace.close()
    for thread in threads:
        thread.join(timeout=30)
    assert len(trace.spans) + trace.dropped == 1600
    assert [recorded.sequence_id for recorded in trace.spans] == list(range(1, len(trace.spans) + 1))
