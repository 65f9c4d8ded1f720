"""After which steps a checkpoint is written, and how many are kept."""

from pathlib import Path

import pytest
from lightning_verl.checkpoints import Schedule, remove_older

from lightning_core.proxy import Budget


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_one_is_due_when_the_last_one_is_long_ago() -> None:
    clock = Clock()
    schedule = Schedule(600, clock=clock)
    schedule.begin()
    clock.now += 599
    assert not schedule.is_due()
    clock.now += 1
    assert schedule.is_due()
    schedule.saved()
    assert not schedule.is_due()
    clock.now += 600
    assert schedule.is_due()


def test_by_steps_alone_time_does_not_count() -> None:
    clock = Clock()
    schedule = Schedule(None, clock=clock)
    schedule.begin()
    clock.now += 1e6
    assert not schedule.is_due()


def test_one_is_due_before_a_step_that_the_budget_would_not_last_for() -> None:
    budget = Budget(calls=100)
    for _ in range(30):  # of validation before the first step
        budget.start_call()
    schedule = Schedule(None, budget=budget)
    schedule.begin()
    due = []
    for calls in (20, 20, 15):
        for _ in range(calls):
            budget.start_call()
        due.append(schedule.is_due())
    # 50 + 20 are less than 100, 70 + 20 are, and 85 + 15 are not.
    assert due == [False, False, True]


@pytest.mark.parametrize("limit", ["tokens", "usd", "seconds"])
def test_every_limit_of_the_budget_counts(limit: str) -> None:
    clock = Clock()
    budget = Budget(**{limit: 10}, clock=clock)
    budget.start()
    schedule = Schedule(None, budget=budget)
    schedule.begin()
    for is_due in (False, True):  # after 4 of 10, and after 8
        clock.now += 4
        budget.end_call(tokens=4, usd=4.0)
        assert schedule.is_due() is is_due


def test_the_newest_ones_are_kept_as_a_whole_and_nothing_else_is_touched(tmp_path: Path) -> None:
    for step in (2, 9, 10, 11):
        (tmp_path / f"global_step_{step}" / "actor").mkdir(parents=True)
        (tmp_path / f"global_step_{step}" / "data.pt").touch()
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("11")
    (tmp_path / "global_step_1_of_mine").mkdir()
    remove_older(tmp_path, keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "global_step_10",
        "global_step_11",
        "global_step_1_of_mine",
        "latest_checkpointed_iteration.txt",
    ]
    remove_older(tmp_path, keep=5)
    assert (tmp_path / "global_step_10" / "data.pt").exists()
