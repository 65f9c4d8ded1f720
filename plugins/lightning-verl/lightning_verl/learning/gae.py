"""Generalised advantage estimation over what the model produced."""

import math
from collections.abc import Sequence

EPSILON = 1e-8
"""Added to the variance, as verl does."""


def gae(
    rewards: Sequence[float], values: Sequence[float], *, gamma: float, lam: float
) -> tuple[list[float], list[float]]:
    """Estimate the advantages and the returns of one episode.

    Schulman et al. 2016 (arXiv:1506.02438), equation 16. Only tokens that the model produced are steps: what a tool or
    a person says is part of the next state.

    Args:
        rewards: What came after each produced token.
        values: What the critic expected before it.
        gamma: The discount for each token.
        lam: The trade-off between bias and variance.

    Returns:
        The advantages, not whitened, and the returns.
    """
    advantages = [0.0] * len(rewards)
    following = value_after = 0.0
    for step in range(len(rewards) - 1, -1, -1):
        delta = rewards[step] + gamma * value_after - values[step]
        following = delta + gamma * lam * following
        value_after = values[step]
        advantages[step] = following
    return advantages, [advantage + value for advantage, value in zip(advantages, values, strict=True)]


def whitened(values: Sequence[float]) -> list[float]:
    """Return values with mean 0 and variance 1, that of a sample (n - 1); one value alone becomes 0."""
    if len(values) < 2:
        return [0.0] * len(values)
    mean = math.fsum(values) / len(values)
    variance = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
    scale = 1.0 / math.sqrt(variance + EPSILON)
    return [(value - mean) * scale for value in values]
