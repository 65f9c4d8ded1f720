"""Agents: what does the tasks, and graders: what scores them.

Agents that are programs or services are imported when they are first used: whoever decorates a function does not pay
for them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from lightning_core.agent.base import LitAgent
from lightning_core.agent.decorators import FunctionalLitAgent, llm_rollout, prompt_rollout, rollout
from lightning_core.agent.graders import Grader

if TYPE_CHECKING:
    from lightning_core.agent.command import CommandAgent as CommandAgent
    from lightning_core.agent.http import HttpAgent as HttpAgent

_HOMES = {"CommandAgent": "command", "HttpAgent": "http"}

__all__ = [
    "CommandAgent",
    "FunctionalLitAgent",
    "Grader",
    "HttpAgent",
    "LitAgent",
    "llm_rollout",
    "prompt_rollout",
    "rollout",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{home}"), name)
