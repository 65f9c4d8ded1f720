"""Runners: what takes work from the store and runs the agent on it."""

from lightning_core.runner.agent import LitAgentRunner
from lightning_core.runner.base import Runner, StopEvent

__all__ = ["LitAgentRunner", "Runner", "StopEvent"]
