"""Generalised advantage estimation over what the model produced."""

from collections.abc import Sequence

import numpy as np

EPSILON = 1e-8
"""Added to the variance, as verl does."""


def gae(
    rewards: np.ndarray | Sequence[float],
    values: np.ndarray | Sequence[float],
    *,
    gamma: float,
    lam: float,
    lengths: Sequence[int] | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Estimate the advantages and the returns of episodes.

    Schulman et al. 2016 (arXiv:1506.02438), equation 16. Only tokens that the model produced are steps: what a tool or
    a person says is part of the next state.

    Args:
        rewards: What came after each produced token, the episodes one after the other.
        values: What the critic expected before it.
        gamma: The discount for each token.
        lam: The trade-off between bias and variance.
        lengths: How many tokens each episode has; None for one episode.

    Returns:
        The advantages, not whitened, and the returns: float64, by token.
    """
    rewards, values = np.asarray(rewards, dtype=np.float64), np.asarray(values, dtype=np.float64)
    sizes = np.asarray([len(rewards)] if lengths is None else lengths, dtype=np.int64)
    longest_first = np.argsort(-sizes, kind="stable")
    last = (np.cumsum(sizes) - 1)[longest_first]
    # From the end of all episodes at once; the shorter ones are done earlier.
    n_left = np.searchsorted(-sizes[longest_first], -np.arange(sizes.max(initial=0)))
    advantages = np.zeros_like(rewards)
    following = value_after = np.zeros(len(sizes))
    for step, n in enumerate(n_left):
        now = last[:n] - step
        delta = rewards[now] + gamma * value_after[:n] - values[now]
        following = delta + gamma * lam * following[:n]
        value_after = values[now]
        advantages[now] = following
    return advantages, advantages + values


def whitened(values: np.ndarray | Sequence[float]) -> np.ndarray:
    """Return values with mean 0 and variance 1, that of a sample (n - 1); one value alone becomes 0."""
    every = np.asarray(values, dtype=np.float64)
    if len(every) < 2:
        return np.zeros_like(every)
    return (every - every.mean()) / np.sqrt(every.var(ddof=1) + EPSILON)
