import math

import pytest
from lightning_apo.candidate import Candidate, best_first, compare, proves_gain


def candidate(number: int, *rewards: float | None) -> Candidate:
    return Candidate(
        number=number,
        texts={"main": f"prompt {number}"},
        resources_id=f"rs-{number}",
        rewards=dict(enumerate(rewards)),
    )


def test_a_score_is_the_mean_of_the_rewards_without_the_lost_samples() -> None:
    score = candidate(0, 1.0, None, 0.5).score
    assert score is not None
    assert (score.mean, score.n, score.lost) == (0.75, 2, 1)
    assert candidate(0, None, None).score is None
    assert candidate(0).score is None


@pytest.mark.parametrize(
    ("rewards", "order"),
    [
        pytest.param({2: [0.5], 0: [0.1], 3: [0.9], 1: [0.5]}, [3, 1, 2, 0], id="the older one of equals is first"),
        pytest.param({1: [None, None], 0: [0.0]}, [0], id="one that lost everything is none any more"),
        pytest.param({1: [None, None]}, [], id="the only one lost everything"),
        pytest.param({1: [1.0, None, None], 0: [0.0] * 3}, [0, 1], id="little is known of the first"),
        # The usual rewards are 2/3 twice, then 1/2: the advantages are (2 x 1/3) / 10 and (2 x 1/3 + 8 x 1/2) / 18.
        pytest.param({0: [1.0] * 2, 1: [1.0] * 10, 2: [0.0] * 10}, [1, 0, 2], id="lucky twice, or good often"),
        # On the two samples of all, the first was right twice and the second once; 98 others are the first's alone.
        pytest.param({1: [1.0, 0.0], 2: [0.0] * 2, 0: [1.0] * 2 + [0.8] * 98}, [0, 1, 2], id="tried on alone"),
        pytest.param({0: [0.5]}, [0], id="alone"),
    ],
)
def test_the_best_comes_first(rewards: dict[int, list[float | None]], order: list[int]) -> None:
    candidates = [candidate(number, *each) for number, each in rewards.items()]
    assert [each.number for each in best_first(candidates, candidates)] == order


def test_losing_the_hard_samples_is_no_gain_over_one_that_gets_them_right() -> None:
    first, coward = candidate(0, 1.0, 1.0, 0.0, 0.0), candidate(1, 1.0, 1.0, None, None)
    better = candidate(2, 1.0, 1.0, 1.0, 0.0)
    assert coward.score is not None
    assert coward.score.mean == 1.0
    candidates = [coward, first, better]
    assert best_first(candidates, candidates)[0] is better


@pytest.mark.parametrize("n", [6, 20, 33])
@pytest.mark.parametrize("changed", [0.1, 0.3, 1.0])
def test_a_gain_that_is_none_is_proven_in_less_than_one_of_twenty_runs(n: int, changed: float) -> None:
    """As many samples get right with the edit as wrong; the probability is summed over all numbers of both."""
    found = 0.0
    for gained in range(n + 1):
        for fell in range(n + 1 - gained):
            same = n - gained - fell
            ways = math.comb(n, gained) * math.comb(n - gained, fell)
            before, after = [0.0] * gained + [1.0] * fell, [1.0] * gained + [0.0] * fell
            if proves_gain([*before, *[1.0] * same], [*after, *[1.0] * same]):
                found += ways * (changed / 2) ** (gained + fell) * (1 - changed) ** same
    assert found <= 0.05


@pytest.mark.parametrize(
    ("before", "after", "is_proven"),
    [
        ([0.0] * 20, [1.0] * 10 + [0.0] * 10, True),
        ([0.0] * 20, [1.0] * 2 + [0.0] * 18, False),
        ([], [], False),
        # Losing the samples that would be wrong proves nothing.
        ([1.0, 0.0] * 30, [1.0, None] * 30, False),
        ([0.0, None] * 30, [0.0, 1.0] * 30, False),
        ([-5.0, 0.0] * 30, [0.0, None] * 30, False),
        # Lost samples are taken at their worst.
        ([0.0] * 4, [1.0] * 4, True),
        ([0.0] * 7, [1.0] * 4 + [None] * 3, False),
        ([None] * 3 + [0.0] * 4, [1.0] * 7, False),
    ],
)
def test_a_clear_gain_is_proven_and_none_by_samples_that_were_lost(
    before: list[float | None], after: list[float | None], is_proven: bool
) -> None:
    assert proves_gain(before, after) == is_proven


def test_two_candidates_are_compared_on_the_samples_that_both_have() -> None:
    comparison = compare(candidate(1, 1.0, 0.5, None, 1.0), candidate(0, 0.5, 0.5, 1.0, None))
    assert comparison is not None
    assert (comparison.before, comparison.after, comparison.n) == (0.5, 0.75, 2)


def test_a_sample_that_one_of_two_was_not_tried_on_is_not_lost() -> None:
    first, edit = candidate(0, *[0.0] * 55), candidate(1, *[1.0] * 14, None)
    comparison = compare(edit, first)
    assert comparison is not None
    assert (comparison.n, comparison.lost) == (14, 1)


def test_candidates_without_a_common_sample_cannot_be_compared() -> None:
    assert compare(candidate(1, 1.0, None), candidate(0, None, 1.0)) is None
