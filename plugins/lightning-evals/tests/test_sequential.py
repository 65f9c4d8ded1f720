"""Bounds that hold at every look, against what can be computed without them."""

import itertools
import math
import random
from fractions import Fraction

import pytest
from lightning_evals.sequential import anytime_bounds, log_wealth

ENOUGH = math.log(40)  # 2 / 0.05


@pytest.mark.parametrize(
    "chances",
    [
        {Fraction(0): Fraction(1, 2), Fraction(1): Fraction(1, 2)},
        {Fraction(0): Fraction(9, 10), Fraction(1): Fraction(1, 10)},
        {Fraction(0): Fraction(1, 5), Fraction(1, 2): Fraction(1, 2), Fraction(1): Fraction(3, 10)},
    ],
)
def test_no_wealth_is_expected_to_grow_where_the_mean_is_the_true_one(chances: dict[Fraction, Fraction]) -> None:
    mean = sum(value * chance for value, chance in chances.items())
    for n in (1, 2, 6):
        expected = 0.0
        for values in itertools.product(chances, repeat=n):
            chance = math.prod(chances[value] for value in values)
            expected += float(chance) * math.exp(log_wealth([float(value) for value in values], float(mean)))
        assert expected == pytest.approx(1.0)


@pytest.mark.parametrize("n", [10, 100, 1000])
def test_the_lower_bound_of_equal_values_is_where_the_average_wealth_is_40(n: int) -> None:
    low, high = anytime_bounds([0.0] * n, low=-1, high=1)
    mean = (1 + low) / 2
    shares = [1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 3 / 4, 7 / 8, 15 / 16, 31 / 32]
    assert sum((1 - share + share * 0.5 / mean) ** n for share in shares) / 9 == pytest.approx(40)
    assert high == pytest.approx(-low)


def test_a_margin_of_0_02_is_shown_by_about_245_equal_samples() -> None:
    assert anytime_bounds([0.0] * 235, low=-1, high=1)[0] < -0.02
    assert anytime_bounds([0.0] * 250, low=-1, high=1)[0] > -0.02


def test_looking_after_each_value_refutes_the_truth_in_at_most_one_run_of_forty() -> None:
    lot = random.Random(0)
    refuted = 0
    for _ in range(160):
        values: list[float] = []
        for _ in range(60):
            values += [lot.choices([0.0, 0.5, 1.0], [0.16, 0.7, 0.14])[0] for _ in range(3)]
            if log_wealth(values, 0.49) >= ENOUGH:
                refuted += 1
                break
    assert refuted <= 4


def test_the_bounds_hold_the_mean_and_close_in_on_it() -> None:
    lot = random.Random(1)
    values = [lot.choice([0.0, 1.0, 1.0, 1.0]) for _ in range(2000)]
    widths = []
    for n in (20, 200, 2000):
        low, high = anytime_bounds(values[:n])
        assert 0 <= low < sum(values[:n]) / n < high <= 1
        assert low < 0.75 < high
        widths.append(high - low)
    assert widths == sorted(widths, reverse=True)
    assert widths[-1] < 0.1


def test_a_value_beyond_its_range_is_refused() -> None:
    with pytest.raises(ValueError, match=r"a value is 1\.5, which is not from 0 to 1"):
        anytime_bounds([0.5, 1.5])
