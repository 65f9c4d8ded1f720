"""How sure a mean is: estimates with confidence intervals, and paired comparisons.

Rewards in, numbers out; nothing here knows where the rewards come from. A lost sample is None: it is counted, and is
no reward of zero.
"""

import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import NormalDist, fmean, stdev
from typing import Literal, TypeVar

_STEPS = 300
"""More than the continued fraction ever needs here: it converges in about sqrt(degrees of freedom) steps."""

_TINY = 1e-300


@lru_cache
def t_quantile(probability: float, degrees_of_freedom: float) -> float:
    """Return the value that a t-distributed variable stays below with this probability.

    It is the root of the distribution function, found by bisection.

    Args:
        probability: Between 0 and 1, both excluded.
        degrees_of_freedom: More than 0.

    Raises:
        ValueError: When an argument is out of its range.
    """
    if not 0 < probability < 1:
        raise ValueError(f"probability is {probability!r}; it is a number between 0 and 1, both excluded")
    if not (degrees_of_freedom > 0 and math.isfinite(degrees_of_freedom)):
        raise ValueError(f"degrees_of_freedom is {degrees_of_freedom!r}; it is a number above 0")
    if probability < 0.5:
        return -t_quantile(1 - probability, degrees_of_freedom)
    if probability == 0.5:
        return 0.0
    low, high = 0.0, 1.0
    while _cumulative(high, degrees_of_freedom) < probability:
        low, high = high, high * 2
        if math.isinf(high):
            return high
    while low < (middle := (low + high) / 2) < high:
        if _cumulative(middle, degrees_of_freedom) < probability:
            low = middle
        else:
            high = middle
    return high


def _cumulative(t: float, degrees_of_freedom: float) -> float:
    """The distribution function at t >= 0: 1 - I(v / (v + t^2); v/2, 1/2) / 2 (NIST DLMF 8.17, Abramowitz 26.7.1)."""
    x = degrees_of_freedom / (degrees_of_freedom + t * t)
    return 1 - _incomplete_beta(x, degrees_of_freedom / 2, 0.5) / 2


def _incomplete_beta(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function, by its continued fraction (NIST DLMF 8.17.22)."""
    if x in (0.0, 1.0):
        return x
    if x > (a + 1) / (a + b + 2):  # there the fraction converges slowly; I(x; a, b) = 1 - I(1 - x; b, a)
        return 1 - _incomplete_beta(1 - x, b, a)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    return math.exp(log_front) / (a * _fraction(x, a, b))


def _fraction(x: float, a: float, b: float) -> float:
    """1 + d1/(1 + d2/(1 + ...)), evaluated from the front by the modified Lentz method.

    Thompson and Barnett 1986, Journal of Computational Physics 64:490-509.
    """
    value, c, d = 1.0, 1.0, 0.0
    for step in range(1, _STEPS):
        m = step // 2
        if step % 2:
            numerator = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            numerator = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        d = 1 / (1 + numerator * d or _TINY)
        c = 1 + numerator / c or _TINY
        value *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return value


CONFIDENCE = 0.95
"""The confidence level of an interval by default."""

ROUNDING = 1e-12
"""Values that differ by less than this share of the largest of them are equal: what is between them is the rounding of
floating-point numbers."""


def number_text(value: float, *, sign: Literal["", "+"] = "") -> str:
    """Return a reward, or a difference of two, as people read it: two decimals, as in `0.38`.

    Where these would show nothing of it, or hundreds of digits, it is three significant ones: `0.0012`, `1e+30`.
    What is closer to 0 than 1e-9 is a rounding error.
    """
    if abs(value) < 1e-9:
        value = 0.0
    return format(value, f"{sign}.2f" if value == 0 or 0.01 <= abs(value) < 1e6 else f"{sign}.3g")


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean, and how sure it is. Its text is `0.71 (95% 0.61..0.79, n=100)`."""

    mean: float
    low: float | None
    """The lower end of the confidence interval; None where the samples do not tell, see `estimate`."""
    high: float | None
    """The upper end; None when `low` is."""
    n: int
    """How many samples gave a value."""
    lost: int = 0
    """How many gave none."""
    confidence: float = CONFIDENCE

    def __str__(self) -> str:
        return f"{number_text(self.mean)} ({_details(self)})"


@dataclass(frozen=True, slots=True)
class PairedDifference:
    """How much better it got, sample by sample. Its text is `0.38 → 0.71 (+0.33, 95% 0.22..0.44, n=100)`."""

    before: float
    """The mean before, over the pairs."""
    after: float
    """The mean after, over the same pairs."""
    difference: float
    """`after - before`."""
    low: float | None
    """The lower end of the difference's confidence interval; None where the pairs do not tell."""
    high: float | None
    """The upper end; None when `low` is."""
    n: int
    """How many pairs there are: samples that gave a value before and after."""
    lost: int = 0
    """How many samples are in no pair, because a value is missing."""
    confidence: float = CONFIDENCE

    @property
    def is_gain(self) -> bool:
        """Whether the whole interval lies above zero."""
        return self.low is not None and self.low > 0

    def __str__(self) -> str:
        before, after = number_text(self.before), number_text(self.after)
        return f"{before} → {after} ({number_text(self.difference, sign='+')}, {_details(self)})"


Measured = TypeVar("Measured", Estimate, PairedDifference)


def without_interval(measured: Measured | None) -> Measured | None:
    """Return it without its interval: what was chosen by the same samples looks better than it is."""
    return measured and replace(measured, low=None, high=None)


def estimate(
    values: Iterable[float | None], *, confidence: float = CONFIDENCE, scale: tuple[float, float] | None = None
) -> Estimate | None:
    """Estimate a mean.

    Where every value is 0 or 1 the interval is Wilson's score interval, which holds for few samples and for means near
    0 and 1, too (Wilson 1927; Newcombe 1998, Statistics in Medicine 17:857-872, method 3). Else it is that of
    Student's t, which takes the mean to be about normal. The samples are taken to be independent.

    Where every value is between 0 and 1, the scale is taken to be 0..1, and Student's interval is cut off there, as in
    0.87..1.00 where it would be 0.87..1.05. No mean is beyond the scale, so the interval holds the true mean as often
    as before. What values there could be is not known here: graded values that all happen to be 0 or 1 have Wilson's
    interval, too.

    Args:
        values: One of each sample; None for one that was lost.
        confidence: How often the interval holds the true mean, between 0 and 1.
        scale: The least and the largest value that there can be, for what is not a reward, such as seconds: then the
            interval is Student's, cut off there. None to tell by the values, as above.

    Returns:
        The estimate; None when there is no value. Its interval is None when there is one value only, or when all are
        equal, which says nothing of how they spread; unless they are 0 or 1.

    Raises:
        ValueError: When a value is not finite, or the confidence not between 0 and 1.
    """
    _check_confidence(confidence)
    every = list(values)
    given = [_finite(value) for value in every if value is not None]
    if not given:
        return None
    low, high = (
        wilson_interval(round(sum(given)), len(given), confidence=confidence)
        if scale is None and _is_binary(given)
        else _t_interval(given, size=max(map(abs, given)), scale=scale or _scale(given, 0.0), confidence=confidence)
    )
    return Estimate(_mean(given), low, high, n=len(given), lost=len(every) - len(given), confidence=confidence)


def paired_difference(
    before: Sequence[float | None],
    after: Sequence[float | None],
    *,
    confidence: float = CONFIDENCE,
    scale: tuple[float, float] | None = None,
) -> PairedDifference | None:
    """Estimate how much better it got, from the same samples before and after.

    A sample that lost either value is in no pair, so losing the hard ones gains nothing. Where every value is 0 or 1
    the interval is that of Bonett and Price 2012 (Journal of Educational and Behavioral Statistics 37:479-488), which
    is honest, too, where every sample changes in the same way. Else it is that of Student's t on the differences. Of
    both holds what `estimate` says.

    The interval is that of one comparison. Where `after` is the best of many on these very samples, it looks better
    than it is: compare it on other samples.

    Args:
        before: A value for each sample; None for one that was lost.
        after: A value for each of the same samples, in the same order.
        confidence: How often the interval holds the true difference, between 0 and 1.
        scale: The least and the largest difference that there can be; see `estimate`.

    Returns:
        The difference; None when there is no pair. Its interval is None when there is one pair only, or when all
        differences are equal; unless the values are 0 or 1.

    Raises:
        ValueError: When there are not as many values after as before, when one is not finite, or the confidence not
            between 0 and 1.
    """
    _check_confidence(confidence)
    if len(before) != len(after):
        raise ValueError(f"before has {len(before)} values and after {len(after)}; give one of each sample to both")
    pairs = [
        (_finite(first), _finite(second))
        for first, second in zip(before, after, strict=True)
        if first is not None and second is not None
    ]
    if not pairs:
        return None
    differences = [_in_range(second - first) for first, second in pairs]
    low, high = (
        _bonett_price_interval(pairs, confidence=confidence)
        if scale is None and _is_binary([value for pair in pairs for value in pair])
        else _t_interval(
            differences,
            size=max(abs(value) for pair in pairs for value in pair),
            scale=scale or _scale([value for pair in pairs for value in pair], -1.0),
            confidence=confidence,
        )
    )
    return PairedDifference(
        _mean([first for first, _ in pairs]),
        _mean([second for _, second in pairs]),
        _mean(differences),
        low,
        high,
        n=len(pairs),
        lost=len(before) - len(pairs),
        confidence=confidence,
    )


def wilson_interval(successes: int, n: int, *, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Return Wilson's score interval of a proportion, without continuity correction.

    Raises:
        ValueError: When there is no trial, or there are fewer of them than successes.
    """
    _check_confidence(confidence)
    if not 0 <= successes <= n or n == 0:
        raise ValueError(f"{successes} successes of {n}; there is at least one trial, and a success is one of them")
    z = _z(confidence)
    proportion = successes / n
    middle = proportion + z * z / (2 * n)
    half = z * math.sqrt(proportion * (1 - proportion) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    # Exact at the ends, where rounding would leave -1e-17.
    low = 0.0 if successes == 0 else (middle - half) / scale
    high = 1.0 if successes == n else (middle + half) / scale
    return low, high


def _bonett_price_interval(pairs: Sequence[tuple[float, float]], *, confidence: float) -> tuple[float, float]:
    """The Wald interval after one more pair of each kind that changed, and two in all."""
    n = len(pairs) + 2
    gained = (1 + sum(before < after for before, after in pairs)) / n
    fell = (1 + sum(before > after for before, after in pairs)) / n
    difference = gained - fell
    half = _z(confidence) * math.sqrt((gained + fell - difference**2) / n)
    return max(-1.0, difference - half), min(1.0, difference + half)


def _scale(values: Iterable[float], low: float) -> tuple[float, float]:
    """The ends that no mean of such values is beyond: `low` and 1 where all values are between 0 and 1."""
    return (low, 1.0) if all(0 <= value <= 1 for value in values) else (-math.inf, math.inf)


def _t_interval(
    values: Sequence[float], *, size: float, scale: tuple[float, float], confidence: float
) -> tuple[float, float] | tuple[None, None]:
    """Student's interval; none where the values do not spread.

    Args:
        values: Whose mean it is.
        size: How large the numbers are that the values were computed from: it says how large their rounding is.
        scale: The ends at which the interval is cut off.
        confidence: How often it holds the true mean.
    """
    if len(values) < 2 or max(values) - min(values) <= ROUNDING * size:
        return None, None
    scaled, exponent = _scaled(values)
    mean = fmean(scaled)
    half = t_quantile((1 + confidence) / 2, len(values) - 1) * stdev(scaled) / math.sqrt(len(values))
    return max(scale[0], _unscaled(mean - half, exponent)), min(scale[1], _unscaled(mean + half, exponent))


def _mean(values: Sequence[float]) -> float:
    scaled, exponent = _scaled(values)
    return _unscaled(fmean(scaled), exponent)


def _scaled(values: Sequence[float]) -> tuple[list[float], int]:
    """Return values between -1 and 1 and the power of two that they were divided by, so that no sum overflows."""
    exponent = math.frexp(max(map(abs, values)))[1]
    return [math.ldexp(value, -exponent) for value in values], exponent


def _unscaled(value: float, exponent: int) -> float:
    try:
        return math.ldexp(value, exponent)
    except OverflowError:
        return math.copysign(sys.float_info.max, value)


def _in_range(value: float) -> float:
    """Return the largest number that there is, in place of an infinite one."""
    return math.copysign(sys.float_info.max, value) if math.isinf(value) else value


def _z(confidence: float) -> float:
    return NormalDist().inv_cdf((1 + confidence) / 2)


def _is_binary(values: Iterable[float]) -> bool:
    return all(value in (0.0, 1.0) for value in values)


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise ValueError(f"a value is {value!r}; values are finite, and None is a lost sample")
    return float(value)


def _check_confidence(confidence: float) -> None:
    if not 0 < confidence < 1:
        raise ValueError(f"confidence is {confidence!r}; it is a number between 0 and 1, such as 0.95")


def _details(of: Estimate | PairedDifference) -> str:
    parts = [f"n={of.n}"]
    if of.low is not None and of.high is not None:
        parts.insert(0, f"{of.confidence * 100:g}% {number_text(of.low)}..{number_text(of.high)}")
    if of.lost:
        parts.append(f"{of.lost} lost")
    return ", ".join(parts)
