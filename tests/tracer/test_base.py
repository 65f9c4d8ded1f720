import asyncio
import subprocess
import sys

import pytest

from lightning_core.errors import TracerError
from lightning_core.tracer import OtelTracer, clear_active_tracer, get_active_tracer, set_active_tracer


def test_importing_emitters_and_tracers_leaves_the_opentelemetry_sdk_alone() -> None:
    code = (
        "import sys, lightning_core.emitter, lightning_core.tracer as t; "
        "assert not [m for m in sys.modules if m.startswith(('opentelemetry.sdk', 'wrapt'))]; "
        "assert t.OtelTracer.__name__ == 'OtelTracer'"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=200)


async def test_active_tracer_belongs_to_the_task_that_set_it(tracer: OtelTracer) -> None:
    async def other_task() -> None:
        set_active_tracer(tracer)
        assert get_active_tracer() is tracer

    await asyncio.create_task(other_task())
    assert get_active_tracer() is None


async def test_second_active_tracer_is_refused_until_the_first_is_cleared(tracer: OtelTracer) -> None:
    set_active_tracer(tracer)
    with pytest.raises(ValueError, match="is the active tracer here; call clear_active_tracer"):
        set_active_tracer(OtelTracer())
    clear_active_tracer()
    assert get_active_tracer() is None


def test_lifespan_tears_down_after_an_error() -> None:
    tracer = OtelTracer()
    with pytest.raises(ZeroDivisionError), tracer.lifespan():
        _ = 1 / (tracer.provider is None)
    with pytest.raises(TracerError, match="not initialised"):
        _ = tracer.provider
