"""After which steps a checkpoint is written, how many are kept, and which one is gone on from."""

import os
from pathlib import Path

import pytest
from lightning_verl.checkpoints import Schedule, note_reward, remove_older, repair_tracker


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def begun(seconds: float | None) -> tuple[Schedule, Clock]:
    clock = Clock()
    schedule = Schedule(seconds, clock=clock)
    schedule.begin()
    return schedule, clock


def test_one_is_due_when_the_last_one_is_long_ago() -> None:
    schedule, clock = begun(600)
    clock.now += 599
    assert not schedule.is_due()
    clock.now += 1
    assert schedule.is_due()
    with schedule.saving():
        clock.now += 30
    assert not schedule.is_due()
    clock.now += 600
    assert schedule.is_due()


def test_at_most_a_twentieth_of_the_time_is_spent_on_them() -> None:
    schedule, clock = begun(600)
    with schedule.saving():
        clock.now += 100
    clock.now += 1999
    assert not schedule.is_due()
    clock.now += 1
    assert schedule.is_due()


def test_by_steps_alone_time_does_not_count() -> None:
    schedule, clock = begun(None)
    clock.now += 1e6
    assert not schedule.is_due()


def written(folder: Path, *steps: int) -> None:
    """Write a checkpoint for each step, one after the other."""
    for second, step in enumerate(steps):
        (folder / f"global_step_{step}" / "actor").mkdir(parents=True)
        data = folder / f"global_step_{step}" / "data.pt"
        data.touch()
        os.utime(data, (1e9 + second, 1e9 + second))


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_best_by_validation_is_kept_beside_the_newest(tmp_path: Path) -> None:
    written(tmp_path, 2, 4)
    for step, reward in ((2, 0.5), (4, 0.75), (5, 1.0)):  # 5 was not saved
        note_reward(tmp_path, step=step, reward=reward)
    written(tmp_path, 6, 9)  # 9 was cut off
    remove_older(tmp_path, newest=6)
    assert left(tmp_path) == ["global_step_4", "global_step_6"]
    note_reward(tmp_path, step=6, reward=0.25)
    written(tmp_path, 8)
    remove_older(tmp_path, newest=8)
    assert left(tmp_path) == ["global_step_4", "global_step_8"]
    note_reward(tmp_path, step=8, reward=0.75)
    remove_older(tmp_path, newest=8)
    assert left(tmp_path) == ["global_step_8"], "of equals the newest"


def test_without_a_validation_the_newest_is_kept_and_nothing_else_is_touched(tmp_path: Path) -> None:
    written(tmp_path, 2, 4, 6)
    (tmp_path / "global_step_1_of_mine").mkdir()
    remove_older(tmp_path, newest=6)
    assert left(tmp_path) == ["global_step_1_of_mine", "global_step_6"]


@pytest.mark.parametrize("torn", [b"", b"\0\0"])
def test_where_the_name_of_the_newest_is_torn_it_is_the_one_that_was_written_last(torn: bytes, tmp_path: Path) -> None:
    written(tmp_path, 8, 11, 10)  # the save of 11 was cut off, and the run taken up from 8
    (tmp_path / "global_step_12" / "actor").mkdir(parents=True)
    tracker = tmp_path / "latest_checkpointed_iteration.txt"
    tracker.write_bytes(torn)
    repair_tracker(tmp_path)
    assert tracker.read_text() == "10"
    assert "latest_checkpointed_iteration.new" not in left(tmp_path)


def test_a_name_that_is_whole_is_left_alone(tmp_path: Path) -> None:
    written(tmp_path, 8, 9)
    repair_tracker(tmp_path)
    assert left(tmp_path) == ["global_step_8", "global_step_9"], "verl has named none"
    tracker = tmp_path / "latest_checkpointed_iteration.txt"
    tracker.write_text("8")
    repair_tracker(tmp_path)
    assert tracker.read_text() == "8"


def test_a_torn_name_of_nothing_lets_a_run_begin_anew(tmp_path: Path) -> None:
    (tmp_path / "latest_checkpointed_iteration.txt").touch()
    repair_tracker(tmp_path)
    assert left(tmp_path) == []
    repair_tracker(tmp_path / "not_there")
