import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from opentelemetry.instrumentation.threading import ThreadingInstrumentor

from lightning_core.tracer import OtelTracer


def patched() -> dict[str, object]:
    return {
        "Thread.start": threading.Thread.start,
        "Thread.run": threading.Thread.run,
        "Timer.start": vars(threading.Timer).get("start"),
        "Timer.run": threading.Timer.run,
        "ThreadPoolExecutor.submit": ThreadPoolExecutor.submit,
    }


@pytest.fixture
def instrumented_by_somebody_else() -> Iterator[ThreadingInstrumentor]:
    instrumentor = ThreadingInstrumentor()
    instrumentor.instrument()
    yield instrumentor
    instrumentor.uninstrument()
    if "start" in vars(threading.Timer):
        del threading.Timer.start


def test_threading_is_as_before_after_the_last_teardown_in_the_process() -> None:
    before = patched()
    first, second = OtelTracer(), OtelTracer()
    first.init()
    first.init()
    second.init()
    assert patched() != before
    first.teardown()
    first.teardown()
    assert patched() != before
    second.teardown()
    assert patched() == before
    second.teardown()
    assert patched() == before


def test_instrumentation_of_somebody_else_is_left_alone(instrumented_by_somebody_else: ThreadingInstrumentor) -> None:
    before = patched()
    with OtelTracer().lifespan():
        assert patched() == before
    assert patched() == before
    assert instrumented_by_somebody_else.is_instrumented_by_opentelemetry
