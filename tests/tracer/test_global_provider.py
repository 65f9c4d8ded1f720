"""OpenTelemetry's global provider can be set once in a process, so each of these runs in one of its own."""

import subprocess
import sys

COMMON = """
import asyncio
from opentelemetry import trace as otel
from opentelemetry.sdk.trace import TracerProvider
from lightning_core.tracer import OtelTracer

made_early = otel.get_tracer("an agent's module")

async def traced(tracer):
    with tracer.lifespan():
        async with tracer.trace_context() as trace:
            with made_early.start_as_current_span("early"):
                tracer.create_span("emitted")
            otel.get_tracer("later").start_span("late").end()
        return [span.name for span in trace.spans]
"""


def run(script: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", COMMON + script], capture_output=True, text=True, check=False, timeout=200
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout.strip()


def test_spans_of_the_global_api_are_recorded_where_nobody_has_set_a_provider() -> None:
    said = run("""
print(asyncio.run(traced(OtelTracer())), asyncio.run(traced(OtelTracer())))
made_early.start_span("outside").end()
""")
    assert said == "['emitted', 'early', 'late'] ['emitted', 'early', 'late']"


def test_an_application_s_own_provider_is_left_alone() -> None:
    said = run("""
own = TracerProvider(shutdown_on_exit=False)
otel.set_tracer_provider(own)
print(asyncio.run(traced(OtelTracer())), otel.get_tracer_provider() is own)
""")
    assert said == "['emitted'] True"
