import math
import random
import sys

import pytest
from hypothesis import given, strategies as st

from lightning_core.algorithm.estimates import (
    estimate,
    paired_difference,
    t_quantile,
    wilson_interval,
)
from lightning_core.testing.store.base import present

# Student's own data, sleep gained with two drugs by ten patients: "The Probable Error of a Mean", Biometrika 6 (1908).
SLEEP_1 = [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0]
SLEEP_2 = [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4]

# Critical values, NIST/SEMATECH e-Handbook of Statistical Methods, 1.3.6.7.2: degrees of freedom -> those of
# probability 0.90, 0.95, 0.975, 0.99 and 0.995. The handbook prints three decimals.
PROBABILITIES = (0.90, 0.95, 0.975, 0.99, 0.995)
NIST = {
    1: (3.078, 6.314, 12.706, 31.821, 63.657),
    2: (1.886, 2.920, 4.303, 6.965, 9.925),
    3: (1.638, 2.353, 3.182, 4.541, 5.841),
    4: (1.533, 2.132, 2.776, 3.747, 4.604),
    5: (1.476, 2.015, 2.571, 3.365, 4.032),
    9: (1.383, 1.833, 2.262, 2.821, 3.250),
    15: (1.341, 1.753, 2.131, 2.602, 2.947),
    20: (1.325, 1.725, 2.086, 2.528, 2.845),
    29: (1.311, 1.699, 2.045, 2.462, 2.756),
    40: (1.303, 1.684, 2.021, 2.423, 2.704),
    60: (1.296, 1.671, 2.000, 2.390, 2.660),
    100: (1.290, 1.660, 1.984, 2.364, 2.626),
}


@pytest.mark.parametrize("degrees", NIST)
def test_t_quantiles_are_those_of_the_published_table(degrees: int) -> None:
    found = [t_quantile(probability, degrees) for probability in PROBABILITIES]
    assert found == pytest.approx(NIST[degrees], abs=0.00051)


@pytest.mark.parametrize("probability", [0.6, 0.9, 0.975, 0.9999])
def test_t_quantiles_are_exact_where_there_is_a_closed_form(probability: float) -> None:
    # One degree of freedom is Cauchy's distribution; for two, the distribution function can be solved.
    assert t_quantile(probability, 1) == pytest.approx(math.tan(math.pi * (probability - 0.5)), rel=1e-10)
    two = (2 * probability - 1) * math.sqrt(2 / (4 * probability * (1 - probability)))
    assert t_quantile(probability, 2) == pytest.approx(two, rel=1e-10)


def test_t_quantiles_become_the_normal_ones() -> None:
    assert t_quantile(0.975, 1e7) == pytest.approx(1.959964, abs=1e-5)
    assert t_quantile(0.5, 3) == 0
    assert t_quantile(0.025, 7) == -t_quantile(0.975, 7)


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [
        # Newcombe 1998, Statistics in Medicine 17:857-872, table I, method 3
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0000, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_wilson_intervals_are_the_published_ones(successes: int, n: int, low: float, high: float) -> None:
    assert wilson_interval(successes, n) == pytest.approx((low, high), abs=0.00005)
    found = present(estimate([1.0] * successes + [0.0] * (n - successes)))
    assert (found.low, found.high) == wilson_interval(successes, n)
    assert (found.mean, found.n) == (pytest.approx(successes / n), n)


def test_a_mean_of_other_numbers_has_the_interval_of_students_t() -> None:
    # R: t.test(sleep$extra[1:10])$conf.int is -0.5297804 2.0297804
    found = present(estimate(SLEEP_1))
    assert (found.mean, found.low, found.high, found.n) == (
        pytest.approx(0.75),
        pytest.approx(-0.5297804, abs=1e-7),
        pytest.approx(2.0297804, abs=1e-7),
        10,
    )


def test_a_paired_difference_has_the_interval_of_students_t_on_the_differences() -> None:
    # R's documentation of t.test: the paired test of `sleep` gives 1.58 with 0.7001142 2.4598858
    found = present(paired_difference(SLEEP_1, SLEEP_2))
    assert found.difference == pytest.approx(1.58)
    assert (found.low, found.high) == pytest.approx((0.7001142, 2.4598858), abs=1e-7)
    assert (found.before, found.after, found.n) == (pytest.approx(0.75), pytest.approx(2.33), 10)
    assert found.is_gain


def test_a_paired_difference_of_zeros_and_ones_has_the_interval_of_bonett_and_price() -> None:
    # Fagerland, Lydersen and Laake 2014, Statistics in Medicine 33:2850-2875: of 21 children 1 had airway
    # hyper-responsiveness before and after, 1 only before, 7 only after, 12 neither; -0.508 to -0.013 the other way.
    before = [1.0] + [1.0] + [0.0] * 7 + [0.0] * 12
    after = [1.0] + [0.0] + [1.0] * 7 + [0.0] * 12
    found = present(paired_difference(after, before))
    assert found.difference == pytest.approx(-6 / 21)
    assert (found.low, found.high) == pytest.approx((-0.508, -0.013), abs=0.0005)
    assert not found.is_gain


def test_every_sample_changing_in_the_same_way_is_not_certainty() -> None:
    few = present(paired_difference([0.0] * 3, [1.0] * 3))
    many = present(paired_difference([0.0] * 30, [1.0] * 30))
    assert (few.difference, few.is_gain) == (1.0, False)
    assert many.is_gain
    assert 0.7 < present(many.low) < 0.9


def test_lost_samples_are_counted_and_make_no_pair() -> None:
    found = present(estimate([1.0, None, 0.0, None]))
    assert (found.mean, found.n, found.lost) == (0.5, 2, 2)
    pairs = present(paired_difference([1.0, None, 0.0, 0.0], [1.0, 1.0, None, 1.0]))
    assert (pairs.before, pairs.after, pairs.n, pairs.lost) == (0.5, 1.0, 2, 2)


def test_nothing_has_no_estimate() -> None:
    assert estimate([]) is None
    assert estimate([None, None]) is None
    assert paired_difference([None, 1.0], [1.0, None]) is None


@pytest.mark.parametrize("values", [[0.3], [0.3, 0.3, 0.3], [0.3, 0.1 + 0.2]])
def test_values_that_do_not_spread_have_no_interval(values: list[float]) -> None:
    found = present(estimate(values))
    assert (found.low, found.high) == (None, None)
    assert str(found) == f"0.30 (n={len(values)})"


def test_rounding_of_floating_point_numbers_is_no_spread() -> None:
    found = present(paired_difference([0.1, 0.2], [0.3, 0.4]))  # differences of 0.19999999999999998 and 0.2
    assert str(found) == "0.15 → 0.35 (+0.20, n=2)"
    assert not found.is_gain
    far = present(paired_difference([1e6 + 0.1, 1e6 + 0.2], [1e6 + 0.3, 1e6 + 0.4]))
    assert far.low is None
    small = present(estimate([1e-9, 2e-9]))
    assert small.low is not None


def test_numbers_of_any_size_have_an_estimate() -> None:
    found = present(estimate([1e308, 1e308, -1e308]))
    assert found.mean == pytest.approx(1e308 / 3)
    assert (found.low, found.high) == (-sys.float_info.max, sys.float_info.max)
    assert estimate([1e308, 1e308]) is not None
    difference = present(paired_difference([1e308, -1e308], [-1e308, 1e308]))
    assert (difference.before, difference.after, difference.difference) == (0.0, 0.0, 0.0)


def test_an_interval_of_values_between_0_and_1_stays_there() -> None:
    assert str(estimate([1.0] * 9 + [0.6])) == "0.96 (95% 0.87..1.00, n=10)"
    assert str(estimate([0.0] * 9 + [0.4])) == "0.04 (95% 0.00..0.13, n=10)"
    assert str(estimate([10.0] * 9 + [6.0])) == "9.60 (95% 8.70..10.50, n=10)"
    difference = present(paired_difference([0.0, 0.1], [1.0, 0.2]))
    assert (difference.low, difference.high) == (-1.0, 1.0)


def test_the_text_of_an_estimate_and_of_a_difference() -> None:
    assert str(estimate([1.0] * 71 + [0.0] * 29)) == "0.71 (95% 0.61..0.79, n=100)"
    assert str(estimate([1.0, 0.0, None], confidence=0.9)) == "0.50 (90% 0.12..0.88, n=2, 1 lost)"
    before = [1.0] * 38 + [0.0] * 62
    after = [1.0] * 33 + [0.0] * 5 + [1.0] * 38 + [0.0] * 24
    assert str(paired_difference(before, after)) == "0.38 → 0.71 (+0.33, 95% 0.21..0.44, n=100)"
    assert str(paired_difference([0.0, 0.5], [0.0, 0.5])) == "0.25 → 0.25 (+0.00, n=2)"
    assert str(paired_difference([0.0012, 0.0012], [0.0048, 0.0048])) == "0.0012 → 0.0048 (+0.0036, n=2)"
    assert str(estimate([1e300])) == "1e+300 (n=1)"


@pytest.mark.parametrize("confidence", [0, 1, 95, math.nan])
def test_a_confidence_out_of_range_is_refused(confidence: float) -> None:
    with pytest.raises(ValueError, match=r"between 0 and 1, such as 0\.95"):
        estimate([1.0], confidence=confidence)


def test_values_that_are_no_numbers_or_no_pairs_are_refused() -> None:
    with pytest.raises(ValueError, match="values are finite, and None is a lost sample"):
        estimate([math.nan])
    with pytest.raises(ValueError, match="before has 1 values and after 2"):
        paired_difference([1.0], [1.0, 0.0])


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40))
def test_the_interval_holds_the_mean(values: list[float]) -> None:
    found = present(estimate(values))
    if found.low is not None and found.high is not None:
        assert found.low <= found.mean <= found.high


@pytest.mark.parametrize(
    ("chance_before", "chance_after", "n"), [(0.4, 0.4, 20), (0.4, 0.7, 50), (0.1, 0.2, 15), (0.5, 0.95, 30)]
)
def test_intervals_hold_the_truth_as_often_as_they_say(chance_before: float, chance_after: float, n: int) -> None:
    lot = random.Random(0)
    held = {"mean": 0, "difference": 0}
    times = 2000
    for _ in range(times):
        before = [float(lot.random() < chance_before) for _ in range(n)]
        after = [float(lot.random() < chance_after) for _ in range(n)]
        mean, difference = present(estimate(after)), present(paired_difference(before, after))
        held["mean"] += present(mean.low) <= chance_after <= present(mean.high)
        held["difference"] += present(difference.low) <= chance_after - chance_before <= present(difference.high)
    assert all(count / times > 0.92 for count in held.values()), held
