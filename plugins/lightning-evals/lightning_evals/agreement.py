"""How well two raters agree, such as a judge and people."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

from lightning_core.algorithm.estimates import CONFIDENCE, number_text, wilson_interval

_DECIMALS = 9
"""Values that differ by less are one category: what is between them is the rounding of floating-point numbers."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """How well two raters agree. Its text is `0.90 (95% 0.77..0.96, n=40), kappa 0.79 (95% 0.60..0.98)`."""

    share: float
    """Of the samples, those on which they say the same."""
    low: float
    """The lower end of the share's confidence interval."""
    high: float
    """The upper end."""
    kappa: float | None
    """Cohen's kappa: the agreement beyond chance, at most 1. None where both always say one and the same."""
    kappa_low: float | None
    """The lower end of kappa's confidence interval; None where the samples do not tell, see `agreement`."""
    kappa_high: float | None
    """The upper end; None when `kappa_low` is."""
    n: int
    """How many samples both rated."""
    lost: int = 0
    """How many one of them did not rate."""
    confidence: float = CONFIDENCE

    def __str__(self) -> str:
        level = f"{self.confidence * 100:g}%"
        lost = f", {self.lost} lost" if self.lost else ""
        words = (
            f"{number_text(self.share)} ({level} {number_text(self.low)}..{number_text(self.high)}, n={self.n}{lost})"
        )
        if self.kappa is None:
            return f"{words}, kappa unknown: every rating is the same"
        words += f", kappa {number_text(self.kappa)}"
        if self.kappa_low is None or self.kappa_high is None:
            return words
        return f"{words} ({level} {number_text(self.kappa_low)}..{number_text(self.kappa_high)})"


def agreement(
    first: Sequence[float | None], second: Sequence[float | None], *, confidence: float = CONFIDENCE
) -> Agreement | None:
    """Estimate how often two raters say the same, and how much of that is not chance.

    Each value is a category of its own: two that are close agree no more than two that are not. The share has
    Wilson's interval. Kappa is Cohen's (1960, Educational and Psychological Measurement 20:37-46), unweighted, with
    the normal interval of Fleiss, Cohen and Everitt (1969, Psychological Bulletin 72:323-327), cut off at -1 and 1.

    Args:
        first: What one rater says of each sample; None where it says nothing.
        second: What the other one says of the same samples, in the same order.
        confidence: How often an interval holds the true value, between 0 and 1.

    Returns:
        The agreement; None when no sample has both ratings. Kappa has no interval where that formula has a width
        of 0, as where the raters always agree: it is not true of few samples.

    Raises:
        ValueError: When there are not as many ratings of both, or the confidence is not between 0 and 1.
    """
    pairs = [
        (round(one, _DECIMALS), round(other, _DECIMALS))
        for one, other in zip(first, second, strict=True)
        if one is not None and other is not None
    ]
    if not pairs:
        return None
    n = len(pairs)
    agreed = sum(one == other for one, other in pairs)
    low, high = wilson_interval(agreed, n, confidence=confidence)
    kappa, error = _kappa(pairs)
    ends: tuple[float | None, float | None] = (None, None)
    if kappa is not None and error > 0:
        half = NormalDist().inv_cdf((1 + confidence) / 2) * error
        ends = max(-1.0, kappa - half), min(1.0, kappa + half)
    return Agreement(agreed / n, low, high, kappa, *ends, n=n, lost=len(first) - n, confidence=confidence)


def _kappa(pairs: Sequence[tuple[float, float]]) -> tuple[float | None, float]:
    """Return kappa and its standard error; None and 0 where chance alone agrees always."""
    n = len(pairs)
    rows = {value: count / n for value, count in Counter(one for one, _ in pairs).items()}
    columns = {value: count / n for value, count in Counter(other for _, other in pairs).items()}
    cells = {pair: count / n for pair, count in Counter(pairs).items()}
    observed = sum(share for (one, other), share in cells.items() if one == other)
    by_chance = sum(share * columns.get(value, 0.0) for value, share in rows.items())
    if len(rows) == 1 and rows.keys() == columns.keys():
        return None, 0.0
    kappa = (observed - by_chance) / (1 - by_chance)
    if all(one == other for one, other in pairs):
        return 1.0, 0.0
    same = sum(
        share * (1 - (rows[one] + columns[one]) * (1 - kappa)) ** 2
        for (one, other), share in cells.items()
        if one == other
    )
    different = (1 - kappa) ** 2 * sum(
        share * (columns.get(one, 0.0) + rows.get(other, 0.0)) ** 2
        for (one, other), share in cells.items()
        if one != other
    )
    variance = same + different - (kappa - by_chance * (1 - kappa)) ** 2
    return kappa, math.sqrt(max(0.0, variance) / n) / (1 - by_chance)
