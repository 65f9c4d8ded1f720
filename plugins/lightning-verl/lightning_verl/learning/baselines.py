"""How much better than its group a reward is."""

import math
from collections.abc import Sequence
from statistics import fmean, stdev

EPSILON = 1e-6
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
    scale = stdev(flat) + EPSILON if norm_by_std else 1.0
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
