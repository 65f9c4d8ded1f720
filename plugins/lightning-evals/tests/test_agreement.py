"""Cohen's kappa and the share of agreement, against published numbers."""

import pytest
from lightning_evals.agreement import agreement

Table = list[list[int]]


def ratings(table: Table) -> tuple[list[float | None], list[float | None]]:
    """Return the two raters' ratings of which a table has the counts."""
    pairs = [(row, column) for row, counts in enumerate(table) for column, n in enumerate(counts) for _ in range(n)]
    return [float(row) for row, _ in pairs], [float(column) for _, column in pairs]


@pytest.mark.parametrize(
    ("table", "kappa"),
    [
        # Fleiss, Levin and Paik 2003, Statistical Methods for Rates and Proportions, table 18.1: kappa 0.68.
        ([[75, 1, 4], [5, 4, 1], [0, 0, 10]], 0.676471),
        # Cohen 1968, Psychological Bulletin 70:213-220, table 1: kappa 0.492.
        ([[88, 14, 18], [10, 40, 10], [2, 6, 12]], 0.491525),
        # The examples of Wikipedia's page on Cohen's kappa.
        ([[20, 5], [10, 15]], 0.4),
        ([[45, 15], [25, 15]], 0.130435),
        ([[25, 35], [5, 35]], 0.259259),
    ],
)
def test_kappa_is_the_published_one(table: Table, kappa: float) -> None:
    found = agreement(*ratings(table))
    assert found is not None
    assert found.kappa == pytest.approx(kappa, abs=1e-6)


def test_the_share_has_wilsons_interval() -> None:
    found = agreement(*ratings([[30, 5], [3, 2]]))
    assert found is not None
    # Computed with statsmodels: proportion_confint(32, 40, method="wilson").
    assert (found.share, found.low, found.high) == pytest.approx((0.8, 0.652427, 0.895000), abs=1e-6)
    assert str(found) == "0.80 (95% 0.65..0.90, n=40), kappa 0.22"


def test_raters_that_always_agree_have_a_kappa_of_1() -> None:
    found = agreement([1, 0, 1, 1], [1, 0, 1, 1])
    assert found is not None
    assert (found.share, found.kappa) == (1.0, 1.0)
    assert found.low == pytest.approx(0.510109, abs=1e-6)  # proportion_confint(4, 4, method="wilson")
    assert str(found) == "1.00 (95% 0.51..1.00, n=4), kappa 1.00"


def test_where_every_rating_is_the_same_kappa_is_not_known() -> None:
    found = agreement([1, 1], [1, 1])
    assert found is not None
    assert found.kappa is None
    assert "kappa unknown: every rating is the same" in str(found)


def test_a_sample_without_one_rating_is_lost_and_no_disagreement() -> None:
    found = agreement([1, None, 0, 0.1 + 0.2], [1, 1, None, 0.3])
    assert found is not None
    assert (found.share, found.n, found.lost) == (1.0, 2, 2)
    assert agreement([None], [1]) is None
