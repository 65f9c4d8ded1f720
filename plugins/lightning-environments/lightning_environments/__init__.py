"""Environments of Lightning Core: tasks by name, with their scorers."""

from lightning_environments.agents import one_call

__all__ = ["one_call"]
