"""After which steps a checkpoint is written, how many are kept, and which one is gone on from."""

import logging
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from lightning_core.budget import Budget, Limit

logger = logging.getLogger(__name__)

_FOLDER = re.compile(r"global_step_(\d+)")
_TRACKER = "latest_checkpointed_iteration.txt"
_LEAST_RATIO = 20
"""How many times as long as it took to write a checkpoint the next one is not written by time."""
_WRITTEN_LATE = "data.pt"
"""Of what each checkpoint has, written after all models."""


class Schedule:
    """Says after which steps a checkpoint is written, besides those after which verl writes one by itself.

    One is due when the last one is so long ago, and before a step that the budget would not last for, if that took as
    much of it as the step before.

    Args:
        seconds: How long ago; None where time does not count. It is longer where it takes long to write one: at most a
            twentieth of the time is spent on it.
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
        self._took_seconds = 0.0
        self._used: dict[Limit, float] = {}

    def begin(self) -> None:
        """Say that the first step begins."""
        self._saved_at = self._clock()
        self._used = {} if self._budget is None else self._budget.used

    @contextmanager
    def saving(self) -> Iterator[None]:
        """Have a checkpoint written during the block."""
        begun = self._clock()
        yield
        self._saved_at = self._clock()
        self._took_seconds = self._saved_at - begun

    def is_due(self) -> bool:
        """Whether one is to be written now. Asked once at the end of each step."""
        elapsed = self._clock() - self._saved_at
        is_time = self.seconds is not None and elapsed >= max(self.seconds, _LEAST_RATIO * self._took_seconds)
        return self._is_budget_short() or is_time

    def _is_budget_short(self) -> bool:
        if self._budget is None:
            return False
        before, self._used = self._used, self._budget.used
        return any(2 * self._used[name] - before.get(name, 0.0) >= limit for name, limit in self._budget.limits.items())


def remove_older(folder: Path, *, newest: int, keep: Iterable[int | None]) -> None:
    """Remove the checkpoints in a folder but for the newest ones.

    verl does so with those of its own process, and leaves something of each; not with those from before a kill. What
    is numbered higher than the one just written is left of saves that were cut off: no run goes on from it.

    Args:
        folder: Where checkpoints are.
        newest: The step of the one just written.
        keep: How many stay, by what each of the models wants. A checkpoint is of all of them, so the smallest number
            counts; None, and what is less than one, asks for all.
    """
    n_kept = min((number for number in keep if number is not None and number > 0), default=None)
    if n_kept is None:
        return
    found = _found(folder)
    reachable = sorted(step for step in found if step <= newest)
    for step in found.keys() - reachable[-n_kept:]:
        shutil.rmtree(found[step])


def repair_tracker(folder: Path) -> None:
    """Name the newest checkpoint again where a kill or a full disk has left nothing of its name.

    verl writes it when all else of a checkpoint is there, and empties the file first: the whole one is the one that
    was written last, whatever its number.

    Args:
        folder: Where checkpoints are, if there are any.
    """
    tracker = folder / _TRACKER
    if not tracker.exists() or tracker.read_bytes().strip().isdigit():
        return
    written = {path / _WRITTEN_LATE: step for step, path in _found(folder).items() if (path / _WRITTEN_LATE).exists()}
    if not written:
        logger.warning("lightning_verl.no_checkpoint_left folder=%s", folder)
        tracker.unlink()
        return
    step = written[max(written, key=lambda path: path.stat().st_mtime_ns)]
    logger.warning("lightning_verl.newest_checkpoint_named_again folder=%s step=%d", folder, step)
    whole = tracker.with_suffix(".new")
    whole.write_text(str(step))
    whole.replace(tracker)


def _found(folder: Path) -> dict[int, Path]:
    return {int(match[1]): path for path in folder.iterdir() if (match := _FOLDER.fullmatch(path.name))}
