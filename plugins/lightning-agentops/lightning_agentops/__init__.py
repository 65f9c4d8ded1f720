"""The tracer `agentops`, and `agl agentops`: what AgentOps sees of an agent, in our store."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightning_agentops.tracer import AgentOpsTracer

__all__ = ["AgentOpsTracer"]


def __getattr__(name: str) -> Any:
    # Imported when it is asked for: `python -m lightning_agentops` starts programs that do without it.
    if name == "AgentOpsTracer":
        from lightning_agentops.tracer import AgentOpsTracer

        return AgentOpsTracer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
