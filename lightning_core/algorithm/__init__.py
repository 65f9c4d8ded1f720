"""Algorithms: what tunes the resources."""

from lightning_core.algorithm.base import Algorithm, Conclusion, FastAlgorithm
from lightning_core.algorithm.baseline import Baseline
from lightning_core.algorithm.batch import Batch, RolloutOutcome, describe_failure, require_rewards, run_batch
from lightning_core.algorithm.decorator import FunctionalAlgorithm, algo

__all__ = [
    "Algorithm",
    "Baseline",
    "Batch",
    "Conclusion",
    "FastAlgorithm",
    "FunctionalAlgorithm",
    "RolloutOutcome",
    "algo",
    "describe_failure",
    "require_rewards",
    "run_batch",
]
