"""The tracer `agentops`: what AgentOps' instrumentation sees of an agent, in our store."""

from lightning_agentops.tracer import AgentOpsTracer

__all__ = ["AgentOpsTracer"]
