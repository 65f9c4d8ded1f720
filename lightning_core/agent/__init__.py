"""Agents: what does the tasks."""

from lightning_core.agent.base import LitAgent
from lightning_core.agent.decorators import FunctionalLitAgent, rollout

__all__ = ["FunctionalLitAgent", "LitAgent", "rollout"]
