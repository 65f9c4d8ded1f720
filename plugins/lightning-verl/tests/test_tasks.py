"""verl goes through numbers of tasks."""

import pytest
from lightning_verl.tasks import TaskNumbers


def test_it_has_as_many_tasks_as_it_is_told() -> None:
    tasks = TaskNumbers("3", tokenizer=None, processor=None, config=None)
    assert [task["index"] for task in tasks] == [0, 1, 2]
    assert len(TaskNumbers("3", max_samples=2)) == 2
    assert len(TaskNumbers("3", max_samples=9)) == 3
    with pytest.raises(IndexError):
        tasks[3]
