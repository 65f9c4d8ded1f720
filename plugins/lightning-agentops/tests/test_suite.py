"""The tracer passes the suite that authors of tracers use, with AgentOps' decorator as its library's own way."""

from collections.abc import Callable
from typing import Any

from lightning_agentops import AgentOpsTracer

from lightning_core.testing.tracer import Traced, TracerSuite
from lightning_core.tracer import Tracer
from lightning_core.types import Span


class TestAgentOpsTracer(TracerSuite):
    def make_tracer(self) -> AgentOpsTracer:
        return AgentOpsTracer()

    def traced_function(self, tracer: Tracer, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        import agentops

        decorated: Callable[..., Any] = agentops.task(name=name)(function)
        return decorated

    async def ours(self, traced: Traced) -> list[Span]:
        # AgentOps puts the kind behind the name.
        spans = await super().ours(traced)
        return [span.model_copy(update={"name": span.name.removesuffix(".task")}) for span in spans]
