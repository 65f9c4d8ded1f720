import asyncio
from contextvars import ContextVar

import pytest

from lightning_core.emitter import emit_message
from lightning_core.errors import TracerError
from lightning_core.tracer import DummyTracer, OtelTracer, get_active_tracer

variable: ContextVar[str] = ContextVar("variable", default="unset")


def test_function_runs_in_a_trace_of_its_own(tracer: OtelTracer) -> None:
    def double(number: int, *, plus: int) -> int:
        emit_message("inside")
        variable.set("by the function")
        # As in a script: no event loop runs here.
        asyncio.run(asyncio.sleep(0))
        return 2 * number + plus

    assert tracer.trace_run(double, 4, plus=1) == 9
    assert [span.name for span in tracer.get_last_trace()] == ["agentlightning.message"]
    assert variable.get() == "by the function"
    assert get_active_tracer() is None


async def test_function_where_an_event_loop_runs_is_refused(tracer: OtelTracer) -> None:
    with pytest.raises(TracerError, match="trace_run was called where an event loop runs; await trace_run_async"):
        tracer.trace_run(print)


def test_tracer_that_was_not_initialised_runs_nothing() -> None:
    with pytest.raises(TracerError, match="not initialised; call init"):
        OtelTracer().trace_run(pytest.fail, "it ran")


def test_langchain_needs_no_handler() -> None:
    assert DummyTracer().get_langchain_handler() is None
