"""Runs: what is reported while one goes on, and what came of it."""

from lightning_core.runs.progress import Progress
from lightning_core.runs.result import Failure, FitResult, RolloutCounts, RunStatus, count_rollouts

__all__ = ["Failure", "FitResult", "Progress", "RolloutCounts", "RunStatus", "count_rollouts"]
