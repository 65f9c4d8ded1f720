import pytest

from lightning_core.emitter import emit_message, emit_reward, operation
from lightning_core.tracer import DummyTracer, get_active_tracer


async def test_what_is_emitted_goes_nowhere_and_nothing_is_refused() -> None:
    tracer = DummyTracer()
    async with tracer.trace_context() as trace:
        assert get_active_tracer() is tracer
        emit_reward(1.0)
        with operation(name="search") as op:
            emit_message("inside")
    assert trace.spans == tracer.get_last_trace() == []
    assert op.span().attributes == {"agentlightning.operation.name": "search"}
    assert get_active_tracer() is None


def test_spans_can_be_made_without_a_trace() -> None:
    tracer = DummyTracer()
    span = tracer.create_span("s", {"a": {"b": 1}}, timestamp=0.0)
    assert (span.attributes, span.start_time, span.end_time) == ({"a.b": 1}, 0.0, 0.0)
    with tracer.operation_context("o", start_time=1.0, end_time=2.0) as recording:
        recording.record_attributes({"c": None})
        recording.record_status("ERROR", "on purpose")
    span = recording.get_recorded_span()
    assert (span.name, span.attributes, span.start_time, span.end_time) == ("o", {"c": None}, 1.0, 2.0)
    assert span.status.description == "on purpose"
    with pytest.raises(ValueError, match="attribute 'a': a span attribute cannot be a object"):
        tracer.create_span("s", {"a": object()})
