"""Runs: what is reported while one goes on, and its result."""

from lightning_core.runs.folder import RunFolder
from lightning_core.runs.held_out import Comparison, compare
from lightning_core.runs.recording import Progress
from lightning_core.runs.result import (
    BudgetUse,
    FailedHook,
    Failure,
    FitResult,
    RolloutCounts,
    RunStatus,
    RunUsage,
    count_rollouts,
)

__all__ = [
    "BudgetUse",
    "Comparison",
    "FailedHook",
    "Failure",
    "FitResult",
    "Progress",
    "RolloutCounts",
    "RunFolder",
    "RunStatus",
    "RunUsage",
    "compare",
    "count_rollouts",
]
