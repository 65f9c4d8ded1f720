"""Runs: what is reported while one goes on, and what came of it."""

from lightning_core.runs.comparison import Comparison, compare
from lightning_core.runs.failed_hooks import FailedHook
from lightning_core.runs.failures import Failure
from lightning_core.runs.folder import RunFolder
from lightning_core.runs.progress import Progress
from lightning_core.runs.result import BudgetUse, FitResult, RolloutCounts, RunStatus, RunUsage, count_rollouts

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
