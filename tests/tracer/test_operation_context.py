import threading

import pytest

from lightning_core.errors import NoActiveTracer
from lightning_core.tracer import OtelTracer


async def test_recorded_span_is_what_the_trace_has(tracer: OtelTracer) -> None:
    async with tracer.trace_context() as trace:
        with tracer.operation_context("o", {"a": {"b": 1}}, start_time=1_000.25, end_time=2_000.5) as recording:
            recording.record_attributes({"c": [1, 2], "d": None})
            assert recording.get_recorded_span().end_time is None
    (span,), recorded = trace.spans, recording.get_recorded_span()
    assert (span.name, span.start_time, span.end_time) == (recorded.name, recorded.start_time, recorded.end_time)
    assert (span.start_time, span.end_time) == (1_000.25, 2_000.5)
    assert span.attributes == {"a.b": 1, "c": (1, 2), "d": None}
    assert recorded.attributes == {"a.b": 1, "c": [1, 2], "d": None}
    assert span.status == recorded.status
    assert span.status.status_code == "OK"


async def test_last_status_counts(tracer: OtelTracer) -> None:
    async with tracer.trace_context() as trace:
        with tracer.operation_context("first well, then not") as recording:
            recording.record_status("OK")
            recording.record_status("ERROR", "after all")
        with tracer.operation_context("an error that was dealt with") as recording:
            recording.record_exception(ValueError("no good"))
            recording.record_status("OK")
    assert [(span.status.status_code, span.status.description) for span in trace.spans] == [
        ("ERROR", "after all"),
        ("OK", None),
    ]
    assert [event.name for event in trace.spans[1].events] == ["exception"]


async def test_exception_without_a_text_does_not_hide_itself(tracer: OtelTracer) -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise ZeroDivisionError

    async with tracer.trace_context() as trace:
        with pytest.raises(Mute), tracer.operation_context("o"):
            raise Mute
    assert trace.spans[0].status.description == "<no text: str() raised ZeroDivisionError>"


def test_operation_outside_of_a_trace_is_refused(tracer: OtelTracer) -> None:
    with pytest.raises(NoActiveTracer, match="span 'o' was created outside of a trace"), tracer.operation_context("o"):
        pass


async def test_operation_of_a_thread_that_outlived_the_tracer_is_counted() -> None:
    tracer, torn_down = OtelTracer(instrument=()), threading.Event()
    ended: list[float | None] = []

    def agent() -> None:
        torn_down.wait(20)
        with tracer.operation_context("late") as recording:
            pass
        ended.append(recording.get_recorded_span().end_time)

    with tracer.lifespan():
        async with tracer.trace_context() as trace:
            thread = threading.Thread(target=agent, daemon=True)
            thread.start()
    torn_down.set()
    thread.join(20)
    assert trace.dropped == 1
    assert ended != [None]
