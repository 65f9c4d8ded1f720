"""Quantiles of Student's t distribution, to about twelve digits, with nothing but the standard library."""

import math

_STEPS = 300
"""More than the continued fraction ever needs here: it converges in about sqrt(degrees of freedom) steps."""

_TINY = 1e-300


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
