"""Carries the OpenTelemetry context into the threads and executors that agents start.

OpenTelemetry's instrumentation patches `threading` for the whole process, so it is on while any tracer needs it. It
covers `Thread` and `Timer`, and `ThreadPoolExecutor` (so `asyncio.to_thread` and `run_in_executor` too). It does not
reach a subclass of `Thread` with a `run` of its own that does not call `super().run()`.
"""

import threading

from opentelemetry.instrumentation.threading import ThreadingInstrumentor

_lock = threading.Lock()
_users = 0
_is_ours = False


def start_carrying_context() -> None:
    """Turn the instrumentation on, unless it is on already."""
    global _users, _is_ours
    with _lock:
        _users += 1
        instrumentor = ThreadingInstrumentor()
        if _users == 1 and not instrumentor.is_instrumented_by_opentelemetry:
            instrumentor.instrument()
            _is_ours = True


def stop_carrying_context() -> None:
    """Turn the instrumentation off after its last user, unless the application had turned it on."""
    global _users, _is_ours
    with _lock:
        _users -= 1
        if _users == 0 and _is_ours:
            _is_ours = False
            instrumentor = ThreadingInstrumentor()
            if instrumentor.is_instrumented_by_opentelemetry:
                instrumentor.uninstrument()
            # opentelemetry-instrumentation-threading<=0.66b1 leaves a wrapper of Thread.start on Timer, which
            # has no start of its own.
            if "start" in vars(threading.Timer):
                del threading.Timer.start
