import pytest
from lightning_apo.candidate import Candidate, best_first, compare
from lightning_apo.search import branches_of


def candidate(number: int, *rewards: float | None) -> Candidate:
    return Candidate(
        number=number,
        texts={"main": f"prompt {number}"},
        resources={},
        resources_id=f"rs-{number}",
        rewards=dict(enumerate(rewards)),
    )


def test_a_score_is_the_mean_of_the_rewards_without_the_lost_samples() -> None:
    score = candidate(0, 1.0, None, 0.5).score
    assert score is not None
    assert (score.mean, score.n, score.lost) == (0.75, 2, 1)
    assert candidate(0, None, None).score is None
    assert candidate(0).score is None


def test_the_best_comes_first_and_the_older_one_of_equals() -> None:
    worst, older, newer, best = candidate(0, 0.1), candidate(1, 0.5), candidate(2, 0.5), candidate(3, 0.9)
    assert best_first([newer, worst, best, older], [0]) == [best, older, newer, worst]


def test_a_candidate_that_lost_everything_is_no_candidate_any_more() -> None:
    alive, dead = candidate(0, 0.0), candidate(1, None, None)
    assert best_first([dead, alive], [0, 1]) == [alive]
    assert best_first([dead], [0, 1]) == []


def test_only_the_samples_of_the_comparison_count() -> None:
    lucky_before, better_now = candidate(0, 1.0, 1.0, 0.0, 0.0), candidate(1, 0.0, 0.0, 0.0, 1.0)
    assert best_first([lucky_before, better_now], [2, 3]) == [better_now, lucky_before]
    assert best_first([lucky_before, better_now], range(4)) == [lucky_before, better_now]


def test_losing_the_hard_samples_is_no_gain() -> None:
    first = candidate(0, 1.0, 1.0, 0.0, 0.0)
    coward = candidate(1, 1.0, 1.0, None, None)
    better = candidate(2, 1.0, 0.0, 1.0, 1.0)
    assert coward.score is not None
    assert coward.score.mean == 1.0
    assert best_first([first, coward, better], range(4)) == [better, first, coward]


def test_a_candidate_of_which_little_is_known_is_behind_the_others() -> None:
    first, doubtful = candidate(0, 0.0, 0.0, 0.0), candidate(1, 1.0, None, None)
    assert best_first([doubtful, first], range(3)) == [first, doubtful]


def test_a_candidate_that_shares_no_sample_with_the_others_is_behind_them() -> None:
    first, apart = candidate(0, 0.0, 0.0, None, None), candidate(1, None, None, 1.0, 1.0)
    assert best_first([apart, first], range(4)) == [first, apart]


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


@pytest.mark.parametrize(("size", "shares"), [(1, [12]), (2, [6, 6]), (3, [6, 3, 3]), (4, [3, 3, 3, 3])])
def test_empty_places_of_the_beam_go_to_its_best_prompts(size: int, shares: list[int]) -> None:
    beam = [candidate(number) for number in range(size)]
    branches = branches_of(beam, beam_width=4, branch_factor=3)
    assert [branches[each] for each in beam] == shares
