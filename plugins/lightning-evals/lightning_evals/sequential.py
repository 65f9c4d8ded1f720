"""Bounds of a mean that hold at every look, so that one may stop as soon as they tell enough."""

import math
from collections.abc import Sequence

from lightning_core.algorithm.estimates import CONFIDENCE

_SHARES = (1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 3 / 4, 7 / 8, 15 / 16, 31 / 32)
"""What share of their wealth each gambler bets. Small ones win where values vary much, large ones where little."""

_STEPS = 50


def log_wealth(values: Sequence[float], mean: float) -> float:
    """Return the logarithm of what gamblers have who bet 1 on values whose mean is larger than a given one.

    The gambler with the share f multiplies their wealth by 1 - f + f * value / mean at each value. Where the values
    have at most this mean, given those before, no strategy is expected to win, so the average wealth of all gamblers is
    a supermartingale: it ever reaches 1 / a with a probability of at most a (Ville 1939). This is diversified betting
    of Waudby-Smith and Ramdas 2024, Journal of the Royal Statistical Society B 86:1-27, section 4 and appendix B.

    Args:
        values: From 0 on, in the order in which they came.
        mean: More than 0.
    """
    logs = [sum(math.log1p(share * (value / mean - 1)) for value in values) for share in _SHARES]
    most = max(logs)
    return most + math.log(sum(math.exp(each - most) for each in logs) / len(logs))


def anytime_bounds(values: Sequence[float], *, low: float = 0.0, high: float = 1.0) -> tuple[float, float]:
    """Return bounds of the mean of bounded values, a confidence sequence: one may look after each value.

    With a confidence of 95% the bounds of all looks hold the true mean at once, however many looks there are and
    whatever ends them. So the bounds of several looks may be cut with each other. They are wider than an interval for a
    number of values that is fixed beforehand. The values are taken to be drawn at random, one after the other.

    Args:
        values: In the order in which they came.
        low: No value can be smaller.
        high: No value can be larger.

    Raises:
        ValueError: When a value is beyond its range.
    """
    for value in values:
        if not low <= value <= high:
            raise ValueError(f"a value is {value!r}, which is not from {low:g} to {high:g}")
    scaled = [(value - low) / (high - low) for value in values]
    enough = math.log(2 / (1 - CONFIDENCE))
    lower = _lower(scaled, enough)
    upper = 1 - _lower([1 - value for value in scaled], enough)
    return low + lower * (high - low), low + upper * (high - low)


def _lower(values: Sequence[float], enough: float) -> float:
    """Return the largest mean that the gamblers refute; the wealth falls as the mean grows."""
    low, high = 0.0, 1.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if log_wealth(values, middle) >= enough:
            low = middle
        else:
            high = middle
    return low
