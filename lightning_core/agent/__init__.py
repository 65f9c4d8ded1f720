"""Agents: what does the tasks, and graders: what scores them."""

from lightning_core.agent.base import LitAgent
from lightning_core.agent.decorators import FunctionalLitAgent, llm_rollout, prompt_rollout, rollout
from lightning_core.agent.environments import Environment, environment
from lightning_core.agent.graders import Grader

__all__ = [
    "Environment",
    "FunctionalLitAgent",
    "Grader",
    "LitAgent",
    "environment",
    "llm_rollout",
    "prompt_rollout",
    "rollout",
]
