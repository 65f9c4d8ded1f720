import pytest
from lightning_apo.candidate import Candidate, best_first, compare, p_value
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


def ranked(*candidates: Candidate) -> list[int]:
    return [each.number for each in best_first(candidates, candidates)]


def test_the_best_comes_first_and_the_older_one_of_equals() -> None:
    worst, older, newer, best = candidate(0, 0.1), candidate(1, 0.5), candidate(2, 0.5), candidate(3, 0.9)
    assert ranked(newer, worst, best, older) == [3, 1, 2, 0]


def test_a_candidate_that_lost_everything_is_no_candidate_any_more() -> None:
    assert ranked(candidate(1, None, None), candidate(0, 0.0)) == [0]
    assert ranked(candidate(1, None, None)) == []


def test_losing_the_hard_samples_is_no_gain_over_one_that_gets_them_right() -> None:
    first, coward = candidate(0, 1.0, 1.0, 0.0, 0.0), candidate(1, 1.0, 1.0, None, None)
    better = candidate(2, 1.0, 1.0, 1.0, 0.0)
    assert coward.score is not None
    assert coward.score.mean == 1.0
    assert ranked(coward, first, better)[0] == 2


def test_a_candidate_of_which_little_is_known_is_behind_the_others() -> None:
    assert ranked(candidate(1, 1.0, None, None), candidate(0, 0.0, 0.0, 0.0)) == [0, 1]


def test_one_that_was_lucky_twice_does_not_pass_one_that_is_good_often() -> None:
    # The usual rewards are 2/3 twice, then 1/2: the advantages are (2 x 1/3) / 10 and (2 x 1/3 + 8 x 1/2) / 18.
    lucky, good, poor = candidate(0, 1.0, 1.0), candidate(1, *[1.0] * 10), candidate(2, *[0.0] * 10)
    assert ranked(lucky, good, poor) == [1, 0, 2]


def test_candidates_that_were_tried_on_different_samples_can_be_compared() -> None:
    """The first two samples are easy; the last two are hard, and the one that is tried there is better."""
    easy, both, hard = candidate(0, 1.0, 1.0), candidate(1, 1.0, 1.0, 0.0, 0.0), candidate(2)
    hard.rewards = {2: 1.0, 3: 0.0}
    assert ranked(easy, both, hard) == [2, 0, 1]


def test_a_gain_of_few_samples_is_not_proven_and_a_clear_one_is() -> None:
    first, lucky, clear = candidate(0, *[0.0] * 30), candidate(1, *[1.0] * 6), candidate(2, *[1.0] * 30)
    assert p_value(lucky, first, tried=10) == pytest.approx(10 * 7 / 127)  # one over (2^7 - 1) / 7
    clearly = p_value(clear, first, tried=10)
    assert clearly is not None
    assert clearly < 1e-6
    assert p_value(first, clear, tried=10) == 1.0


def test_losing_the_samples_that_would_be_wrong_proves_nothing() -> None:
    first, loser = candidate(0, *[1.0, 0.0] * 30), candidate(1, *[1.0, None] * 30)
    assert p_value(loser, first, tried=10) == 1.0


def test_rewards_beyond_0_to_1_prove_nothing() -> None:
    assert p_value(candidate(1, 9.0, 9.0), candidate(0, 0.0, 0.0), tried=1) is None


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
