from .tracer import (
    AgentOpsTracer as AgentOpsTracer,
)

__all__ = [
    "AgentOpsTracer",
]
