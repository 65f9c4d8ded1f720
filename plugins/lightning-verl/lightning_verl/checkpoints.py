"""After which steps a checkpoint is written, how many are kept, and which one is gone on from."""

import logging
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

logger = logging.getLogger(__name__)

_FOLDER = re.compile(r"global_step_(\d+)")
_TRACKER = "latest_checkpointed_iteration.txt"
_REWARD = "validation_reward"
"""The file in a checkpoint that has what a validation measured of it."""
_LEAST_RATIO = 20
"""How many times as long as it took to write a checkpoint the next one is not written by time."""
_WRITTEN_LATE = "data.pt"
"""Of what each checkpoint has, written after all models."""


class Schedule:
    """Says after which steps a checkpoint is written, besides those after which verl writes one by itself.

    One is due when the last one is so long ago.

    Args:
        seconds: How long ago; None where time does not count. It is longer where it takes long to write one: at most a
            twentieth of the time is spent on it.
        clock: Returns seconds that never go back.
    """

    def __init__(self, seconds: float | None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds = seconds
        self._clock = clock
        self._saved_at = 0.0
        self._took_seconds = 0.0

    def begin(self) -> None:
        """Say that the first step begins."""
        self._saved_at = self._clock()

    @contextmanager
    def saving(self) -> Iterator[None]:
        """Have a checkpoint written during the block."""
        begun = self._clock()
        yield
        self._saved_at = self._clock()
        self._took_seconds = self._saved_at - begun

    def is_due(self) -> bool:
        """Whether one is to be written now."""
        elapsed = self._clock() - self._saved_at
        return self.seconds is not None and elapsed >= max(self.seconds, _LEAST_RATIO * self._took_seconds)


def note_reward(folder: Path, *, step: int, reward: float) -> None:
    """Record what a validation has measured of a model, in its checkpoint; nothing where that was not written.

    Args:
        folder: Where checkpoints are.
        step: After which the model was measured.
        reward: The mean.
    """
    if (saved := folder / f"global_step_{step}").is_dir():
        (saved / _REWARD).write_text(repr(reward))


def remove_older(folder: Path, *, newest: int) -> None:
    """Remove the checkpoints in a folder but for the best one by validation, and the newest.

    What is numbered higher than the one just written is left of saves that were cut off: no run goes on from it.

    Args:
        folder: Where checkpoints are.
        newest: The step of the one just written.
    """
    folders = _found(folder)
    noted = {step: saved / _REWARD for step, saved in folders.items() if step <= newest and (saved / _REWARD).exists()}
    rewards = {step: float(file.read_text()) for step, file in noted.items()}
    for step in folders.keys() - {newest, *sorted(rewards, key=lambda step: (rewards[step], step))[-1:]}:
        shutil.rmtree(folders[step])


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
