"""The tracer that ships with the core passes the suite that authors of tracers use."""

from lightning_core.testing.tracer import TracerSuite
from lightning_core.tracer import OtelTracer


class TestOtelTracer(TracerSuite):
    def make_tracer(self) -> OtelTracer:
        return OtelTracer(instrument=())
