"""Execution strategies: where the algorithm and the runners live."""

from lightning_core.errors import ExecutionError
from lightning_core.execution.base import (
    AlgorithmBundle,
    ExecutionEvent,
    ExecutionStrategy,
    MultiprocessingEvent,
    RunnerBundle,
    ThreadingEvent,
)
from lightning_core.execution.local import LocalStrategy

SharedMemoryExecutionStrategy = LocalStrategy
"""What agentlightning 0.3 calls the strategy that keeps everything in one process."""

__all__ = [
    "AlgorithmBundle",
    "ExecutionError",
    "ExecutionEvent",
    "ExecutionStrategy",
    "LocalStrategy",
    "MultiprocessingEvent",
    "RunnerBundle",
    "SharedMemoryExecutionStrategy",
    "ThreadingEvent",
]
