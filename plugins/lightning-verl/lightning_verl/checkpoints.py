"""After which steps a checkpoint is written, and how many are kept."""

import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from lightning_core.proxy import Budget
from lightning_core.proxy.budget import Limit

_FOLDER = re.compile(r"global_step_(\d+)")


class Schedule:
    """Says after which steps a checkpoint is written, besides those after which verl writes one by itself.

    One is due when the last one is so long ago, and before a step that the budget would not last for, if that took as
    much of it as the step before.

    Args:
        seconds: How long ago; None where time does not count.
        budget: What the run may use; None for no limit.
        clock: Returns seconds that never go back.
    """

    def __init__(
        self, seconds: float | None, *, budget: Budget | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.seconds = seconds
        self._budget = budget
        self._clock = clock
        self._saved_at = 0.0
        self._used: dict[Limit, float] = {}

    def begin(self) -> None:
        """Say that the first step begins."""
        self.saved()
        self._used = {} if self._budget is None else self._budget.used

    def saved(self) -> None:
        """Say that a checkpoint was written."""
        self._saved_at = self._clock()

    def is_due(self) -> bool:
        """Whether one is to be written now. Asked once at the end of each step."""
        is_time = self.seconds is not None and self._clock() - self._saved_at >= self.seconds
        return self._is_budget_short() or is_time

    def _is_budget_short(self) -> bool:
        if self._budget is None:
            return False
        before, self._used = self._used, self._budget.used
        return any(2 * self._used[name] - before.get(name, 0.0) >= limit for name, limit in self._budget.limits.items())


def remove_older(folder: Path, *, keep: int) -> None:
    """Remove the checkpoints in a folder but for the newest ones.

    verl does so with those of its own process, and leaves something of each; not with those from before a kill.

    Args:
        folder: Where checkpoints are.
        keep: How many stay.
    """
    found = {int(match[1]): path for path in folder.iterdir() if (match := _FOLDER.fullmatch(path.name))}
    for step in sorted(found)[:-keep]:
        shutil.rmtree(found[step])
