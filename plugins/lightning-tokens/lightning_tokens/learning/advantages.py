"""How much better an answer is than expected: than its group, or than what the critic expected."""

import math
from collections.abc import Sequence
from statistics import fmean, stdev

import numpy as np

_TO_STD = 1e-6
"""Added to the standard deviation, as verl and the authors of GRPO do."""


def grpo_advantages(groups: Sequence[Sequence[float]], *, norm_by_std: bool = True) -> list[list[float]]:
    """Compare each reward with the mean of all, in standard deviations.

    Equation and section: GRPO, outcome supervision, of Shao et al. 2024 (arXiv:2402.03300), section 4.1.2; with
    several rewards a rollout it is the normalisation of its process supervision, section 4.1.3. The standard deviation
    is that of a sample (n - 1), as verl has it. Without it: Liu et al. 2025 (arXiv:2503.20783).

    Args:
        groups: Of each rollout, its rewards; one each, unless calls are judged one by one. Two or more in all.
        norm_by_std: Whether to divide by the standard deviation.

    Returns:
        In the same shape, the advantages.
    """
    flat = [reward for rewards in groups for reward in rewards]
    mean = fmean(flat)
    scale = stdev(flat) + _TO_STD if norm_by_std else 1.0
    return [[(reward - mean) / scale for reward in rewards] for rewards in groups]


def rloo_advantages(groups: Sequence[Sequence[float]]) -> list[list[float]]:
    """Compare each reward with the mean of those of the other rollouts.

    Ahmadian et al. 2024 (arXiv:2402.14740), section 3.2. Where a rollout has several rewards, all of its own are left
    out, for they depend on each other.

    Args:
        groups: Of each rollout, its rewards; two or more have some.

    Returns:
        In the same shape, the advantages.
    """
    total, n = math.fsum(reward for rewards in groups for reward in rewards), sum(map(len, groups))
    advantages = []
    for rewards in groups:
        others = n - len(rewards)
        baseline = (total - math.fsum(rewards)) / others if others else 0.0
        advantages.append([reward - baseline for reward in rewards])
    return advantages


_TO_VARIANCE = 1e-8
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
    return (every - every.mean()) / np.sqrt(every.var(ddof=1) + _TO_VARIANCE)
