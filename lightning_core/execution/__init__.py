"""Execution strategies: where the algorithm and the runners live."""

from lightning_core.execution.base import AlgorithmBundle, ExecutionError, ExecutionStrategy, RunnerBundle
from lightning_core.execution.local import LocalStrategy

__all__ = ["AlgorithmBundle", "ExecutionError", "ExecutionStrategy", "LocalStrategy", "RunnerBundle"]
