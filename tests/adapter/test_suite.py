"""The built-in adapters pass the suite that authors of adapters use."""

from lightning_core.adapter import (
    LlmProxyTraceToTriplet,
    TracerTraceToTriplet,
    TraceToMessages,
    TraceToTrajectories,
    Trajectories,
)
from lightning_core.testing.adapter import AdapterSuite


class TestTracerTraceToTriplet(AdapterSuite):
    def make_adapter(self):
        return TracerTraceToTriplet()


class TestLlmProxyTraceToTriplet(AdapterSuite):
    def make_adapter(self):
        return LlmProxyTraceToTriplet()


class TestTraceToMessages(AdapterSuite):
    def make_adapter(self):
        return TraceToMessages()


class TestTraceToTrajectories(AdapterSuite):
    def make_adapter(self):
        return TraceToTrajectories()

    def count_calls(self, result: Trajectories) -> int:
        return sum(len(row.calls) for row in result.rows) + len(result.refused)
