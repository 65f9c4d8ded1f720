"""Whether failures depend on the task."""

from collections import deque
from collections.abc import Iterable, Sequence

import numpy as np

from lightning_verl.learning.groups import Lesson

SIGNIFICANCE = 0.01
"""A warning is given where failures that do not depend on the task would look like this less often."""

_DRAWS = 999
_GROUPS = 256
_FIRST_LOOK = 4


class FailureWatch:
    """Tells once when some tasks fail more often than others, more than chance has it.

    Where failures are dropped, an agent that crashes on a hard task is not held to account for it, so crashing there
    is rewarded. That does no harm where failures hit all tasks alike.

    Args:
        seed: Of the draws.
    """

    def __init__(self, *, seed: int = 0) -> None:
        self._counts: deque[tuple[int, int]] = deque(maxlen=_GROUPS)
        self._failures = 0
        self._next_look = _FIRST_LOOK
        self._chance = np.random.default_rng(seed)

    def see(self, lessons: Iterable[Lesson]) -> str | None:
        """Count the failures of more groups; those that have a value are held to account.

        The test is made when the number of failures has doubled since the last one, so that it is not made often
        enough to be wrong by chance. It looks at the latest 256 groups.

        Returns:
            What to warn of; None where there is nothing to tell, or it has been told.
        """
        for lesson in lessons:
            seen = [rollout for rollout in lesson.rollouts if rollout.end != "fault"]
            if seen:
                dropped = sum(rollout.end == "failure" and rollout.reward is None for rollout in seen)
                self._counts.append((len(seen), dropped))
                self._failures += dropped
        if self._failures < self._next_look or self._next_look == 0:
            return None
        self._next_look = 2 * self._failures
        p_value = failures_depend_on_group(self._counts, chance=self._chance)
        if p_value >= SIGNIFICANCE:
            return None
        self._next_look = 0
        n, failed = (sum(column) for column in zip(*self._counts, strict=True))
        return (
            f"failures depend on the task: {failed} of {n} rollouts failed, unevenly over {len(self._counts)} tasks "
            f"(p = {p_value:.3f}); dropping them rewards crashing on hard tasks: "
            "set agentlightning.on_failure to a number, such as the lowest reward"
        )


def failures_depend_on_group(
    counts: Sequence[tuple[int, int]] | deque[tuple[int, int]], *, chance: np.random.Generator
) -> float:
    """Return how often chance alone would spread the failures as unevenly over the groups.

    Pearson's statistic of homogeneity; its distribution is found by drawing which rollouts failed, for groups are
    small (the smallest p is 0.001). With the number of failures kept, the statistic grows with the sum over groups of
    failures squared over size, which is what is compared.

    Args:
        counts: Of each group, how many rollouts there are and how many of them failed.
        chance: numpy's generator of random numbers.
    """
    sizes, failed = np.array(counts).T
    drawn = chance.multivariate_hypergeometric(sizes, failed.sum(), size=_DRAWS)
    seen = (failed**2 / sizes).sum()
    as_uneven = np.count_nonzero((drawn**2 / sizes).sum(axis=1) >= seen * (1 - 1e-12))
    return float((1 + as_uneven) / (1 + _DRAWS))
