"""The answers of a referee are true together, whatever they lead to."""

import itertools
import random
from collections import defaultdict
from fractions import Fraction

import pytest
from lightning_referee import level_of, verdict
from lightning_referee.comparison import LOOKS, sign_test


@pytest.mark.parametrize("of", [1, 2, 5, 12])
def test_the_levels_of_all_possible_challenges_add_up_to_what_may_be_spent(of: int) -> None:
    histories = itertools.chain.from_iterable(itertools.product([False, True], repeat=asked) for asked in range(of))
    spent = sum(level_of(sum(each), of=of, confidence=0.95) for each in histories)
    assert spent == pytest.approx(0.05)


@pytest.mark.parametrize(("won", "of"), [(3, 3), (-1, 3)])
def test_an_impossible_history_has_no_level(won: int, of: int) -> None:
    with pytest.raises(ValueError, match=f"{won} of {of} challenges were won"):
        level_of(won, of=of)


@pytest.mark.parametrize(
    ("wins", "losses", "published"), [(0, 0, 1.0), (10, 0, 0.000977), (8, 2, 0.054688), (9, 1, 0.010742)]
)
def test_the_sign_test_has_the_probabilities_of_the_table(wins: int, losses: int, published: float) -> None:
    """Of n = 10 and p = 0.5: Conover 1999, Practical Nonparametric Statistics, table A3 (1 less the tabled value)."""
    assert sign_test(wins, losses) == pytest.approx(published, abs=1e-6)


@pytest.mark.parametrize(("level", "changes"), [(0.1, Fraction(1)), (0.02, Fraction(1)), (0.1, Fraction(2, 5))])
def test_an_equal_candidate_wins_at_most_as_often_as_the_level_says(level: float, changes: Fraction) -> None:
    """By enumeration of all numbers of wins, losses and ties, over all looks, with rational numbers."""
    n, step = 40, 40 // LOOKS
    states = {(0, 0): Fraction(1)}
    false_yes = Fraction(0)
    for seen in range(1, n + 1):
        after: defaultdict[tuple[int, int], Fraction] = defaultdict(Fraction)
        for (wins, losses), probability in states.items():
            after[wins + 1, losses] += probability * changes / 2
            after[wins, losses + 1] += probability * changes / 2
            after[wins, losses] += probability * (1 - changes)
        states = dict(after)
        for (wins, losses), probability in after.items() if seen % step == 0 else ():
            ties = seen - wins - losses
            best, candidate = [0.0] * wins + [1.0] * losses + [1.0] * ties, [1.0] * wins + [0.0] * losses + [1.0] * ties
            if verdict(best, candidate, of=n, level=level, seed="any") is True:
                false_yes += probability
                del states[wins, losses]
    assert level / 10 < false_yes <= level


def test_a_comparison_ends_early_where_the_rest_cannot_turn_it_and_where_it_is_clear() -> None:
    def found(best: list[float], candidate: list[float]) -> bool | None:
        return verdict(best, candidate, of=100, level=0.005, seed="any")

    assert found([1.0] * 20, [0.0] * 12 + [1.0] * 8) is False
    assert found([1.0] * 20, [1.0] * 20) is False
    assert found([1.0, 0.0] * 10, [0.0, 1.0] * 10) is None
    assert found([0.0] * 20, [1.0] * 20) is True


def test_graded_rewards_win_as_often_as_they_are_larger() -> None:
    wins = [verdict([0.4], [0.7], of=1, level=0.7, seed=str(seed)) for seed in range(2000)]
    assert sum(each is True for each in wins) == pytest.approx(0.3 * 2000, abs=4 * (0.21 * 2000) ** 0.5)
    losses = [verdict([0.7], [0.4], of=1, level=0.99, seed=str(seed)) for seed in range(100)]
    assert not any(losses)


def test_a_reward_beyond_the_range_is_refused() -> None:
    with pytest.raises(ValueError, match=r"rewards are 0\.0 and 2\.0; they are from 0 to 1"):
        verdict([0.0], [2.0], of=10, level=0.05, seed="any")


def attack(seed: int, *, honest: bool) -> bool:
    """Let someone climb on hidden samples by guessing, where no guess is better than another; say if a gain is claimed.

    A candidate flips some of the best one's guesses; its true accuracy is 1/2, as that of all. So a leaderboard is
    overfitted (Blum and Hardt 2015, section 4).
    """
    chance, n, challenges = random.Random(seed), 60, 20
    truth = [chance.random() < 0.5 for _ in range(n)]
    best = [chance.random() < 0.5 for _ in range(n)]
    won = 0
    for _ in range(challenges):
        guess = [each if chance.random() < 0.7 else not each for each in best]
        first, second = ([float(a == b) for a, b in zip(each, truth, strict=True)] for each in (best, guess))
        if honest:
            wins = verdict(first, second, of=n, level=level_of(won, of=challenges), seed="any") is True
        else:
            wins = sum(second) > sum(first)
        if wins:
            best, won = guess, won + 1
    return won > 0


def test_who_climbs_on_hidden_samples_is_not_told_of_gains_that_are_not_there() -> None:
    runs = range(100)
    assert sum(attack(seed, honest=False) for seed in runs) > 90
    assert sum(attack(seed, honest=True) for seed in runs) <= 5
