import pytest
from lightning_apo.beam import branches_of
from lightning_apo.candidate import Candidate, best_against, best_first, compare

from lightning_core.types import PromptTemplate


def candidate(number: int, *rewards: float | None) -> Candidate:
    return Candidate(
        number=number,
        prompt=PromptTemplate(template=f"prompt {number}"),
        resources={},
        resources_id=f"rs-{number}",
        rewards=dict(enumerate(rewards)),
    )


def test_a_score_is_the_mean_of_the_rewards_without_the_lost_samples() -> None:
    assert candidate(0, 1.0, None, 0.5).score == 0.75
    assert candidate(0, None, None).score is None
    assert candidate(0).score is None


def test_the_best_comes_first_and_the_older_one_of_equals() -> None:
    worst, older, newer, best = candidate(0, 0.1), candidate(1, 0.5), candidate(2, 0.5), candidate(3, 0.9)
    assert best_first([newer, worst, best, older]) == [best, older, newer, worst]


def test_a_candidate_that_lost_everything_is_no_candidate_any_more() -> None:
    alive, dead = candidate(0, 0.0), candidate(1, None, None)
    assert best_first([dead, alive]) == [alive]


def test_two_candidates_are_compared_on_the_samples_that_both_have() -> None:
    comparison = compare(candidate(1, 1.0, 0.5, None, 1.0), candidate(0, 0.5, 0.5, 1.0, None))
    assert comparison is not None
    assert (comparison.mean, comparison.reference_mean, comparison.samples) == (0.75, 0.5, 2)


def test_candidates_without_a_common_sample_cannot_be_compared() -> None:
    assert compare(candidate(1, 1.0, None), candidate(0, None, 1.0)) is None


def test_losing_the_hard_samples_is_no_gain() -> None:
    first = candidate(0, 1.0, 1.0, 0.0, 0.0)
    coward = candidate(1, 1.0, 1.0, None, None)
    better = candidate(2, 1.0, 0.0, 1.0, 1.0)
    assert coward.score == 1.0
    assert best_against(first, [coward, better]) is better
    assert best_against(first, [coward]) is first


@pytest.mark.parametrize(("size", "shares"), [(1, [12]), (2, [6, 6]), (3, [6, 3, 3]), (4, [3, 3, 3, 3])])
def test_empty_places_of_the_beam_go_to_its_best_prompts(size: int, shares: list[int]) -> None:
    beam = [candidate(number) for number in range(size)]
    branches = branches_of(beam, beam_width=4, branch_factor=3)
    assert [branches[each] for each in beam] == shares
