"""Whether a candidate is better than the best one on hidden samples, however often that was asked before."""

import random
from collections.abc import Sequence
from math import ceil, comb

from lightning_core.algorithm.estimates import CONFIDENCE

LOOKS = 5
"""How often a comparison is looked at, each time after as many samples."""

_EARLY = 0.05
"""What share of its level a comparison may spend at each look but the last, which has what is left."""

_WORSE = 0.05


def level_of(won: int, *, of: int, confidence: float = CONFIDENCE) -> float:
    """Return how likely the next challenge may be won wrongly.

    Whoever asks learns one bit of each challenge, and may make other candidates of it. So there are as many comparisons
    that may come as there are ways in which the answers can come; `comb(of, won + 1)` of them follow `won` wins. These
    share half as much as those after one win less, and all levels together add up to `1 - confidence`. By the union
    bound all wins are true at once with at least this confidence, whatever the candidates were made from, as long as
    that knows nothing of the hidden samples but these answers. That is the argument of SparseValidate (Dwork, Feldman,
    Hardt, Pitassi, Reingold and Roth 2015, Generalization in Adaptive Data Analysis and Holdout Reuse, section 4), and
    of the Ladder (Blum and Hardt 2015), for a number of challenges that is known beforehand.

    Args:
        won: How many challenges were won before.
        of: How many challenges there are in all.
        confidence: How often all wins are true, at least.

    Raises:
        ValueError: When as many were won as there are.
    """
    if not 0 <= won < of:
        raise ValueError(f"{won} of {of} challenges were won; before the next one at most {of - 1} can be")
    share = 0.5 ** (won + 1) / (1 - 0.5**of)
    return (1 - confidence) * share / comb(of, won + 1)


def sign_test(wins: int, losses: int) -> float:
    """Return how likely at least as many wins are where a win is not likelier than a loss: the exact binomial tail."""
    n = wins + losses
    return float(sum(comb(n, k) for k in range(wins, n + 1)) / 2**n)


def verdict(best: Sequence[float], candidate: Sequence[float], *, of: int, level: float, seed: str) -> bool | None:
    """Say whether a candidate is better than the best one, by their rewards on the same samples.

    It is asked after each 5th part of the samples. A sample is a win with as high a probability as the candidate's
    reward is larger there, or a loss with as high a one as it is smaller; so rewards of 0 and 1 leave nothing to
    chance. Where the true mean of the candidate is not larger, a win is not likelier than a loss, and the exact sign
    test is True at any of the looks with a probability of at most `level`. No assumption is made but that samples are
    drawn independently.

    Args:
        best: The rewards of the best one so far; each between 0 and 1.
        candidate: Those of the candidate on the same samples, in the same order.
        of: How many there will be in the end.
        level: How likely a false True may be, over all looks.
        seed: Of these draws. Nobody who makes candidates may know it.

    Returns:
        None when it is open. It is False when all samples were seen, when the candidate is worse so far (sign test at
        5%), or when it would not be enough if the rest differed as often as until now, and were all wins.

    Raises:
        ValueError: When a reward is not between 0 and 1, or one side has more of them.
    """
    chance, wins, losses = random.Random(seed), 0, 0
    for before, after in zip(best, candidate, strict=True):
        if not (0 <= before <= 1 and 0 <= after <= 1):
            raise ValueError(f"rewards are {before!r} and {after!r}; they are from 0 to 1")
        draw = chance.random()
        wins += after - before > draw
        losses += before - after > draw
    left, last_level = of - len(best), level * (1 - _EARLY * (LOOKS - 1))
    if sign_test(wins, losses) <= (level * _EARLY if left > 0 else last_level):
        return True
    hoped = ceil(left * (wins + losses) / max(1, len(best)))
    is_open = left > 0 and sign_test(wins + hoped, losses) <= last_level and sign_test(losses, wins) > _WORSE
    return None if is_open else False
