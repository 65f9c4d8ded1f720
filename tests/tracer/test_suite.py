"""The tracer that ships with the core passes the suite that authors of tracers use."""

import inspect
from collections.abc import Callable
from typing import Any

from lightning_core.testing.tracer import TracerSuite
from lightning_core.tracer import OtelTracer


class TestOtelTracer(TracerSuite):
    def make_tracer(self) -> OtelTracer:
        return OtelTracer(instrument=())

    def traced_function(self, tracer: OtelTracer, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        otel_tracer = tracer.provider.get_tracer("test")
        if inspect.iscoroutinefunction(function):

            async def traced_coroutine(*args: Any) -> Any:
                with otel_tracer.start_as_current_span(name):
                    return await function(*args)

            return traced_coroutine

        def traced_plain(*args: Any) -> Any:
            with otel_tracer.start_as_current_span(name):
                return function(*args)

        return traced_plain
