"""Held-out samples that an algorithm is given, too."""

import logging
from typing import Any

import pytest

from lightning_core import Trainer, rollout
from lightning_core.runs.held_out import warn_of_overlap


class Lazy:
    """A dataset that is not in memory."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: Any) -> Any:
        raise AssertionError("it was read")


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_samples_that_are_in_both_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    warn_of_overlap(
        [{"q": "a", "n": 1}, {"q": "b"}, {"q": "c"}],
        {"train_dataset": [{"n": 1, "q": "a"}, {"q": "b"}], "val_dataset": ({"q": "d"},)},
    )
    assert warnings_of(caplog) == [
        "lightning.test_dataset_overlaps dataset=train_dataset shared=2 of=3: the algorithm is given held-out samples, "
        "too; the result on them flatters it"
    ]


@pytest.mark.parametrize(("test", "train"), [(Lazy(), [1]), ([1], Lazy()), (None, [1]), ([1], None)])
def test_dataset_that_is_not_in_memory_is_not_read(test: Any, train: Any, caplog: pytest.LogCaptureFixture) -> None:
    warn_of_overlap(test, {"train_dataset": train})
    assert warnings_of(caplog) == []


@rollout
async def agent(task: int) -> float:
    return float(task)


def test_run_warns_before_it_starts(caplog: pytest.LogCaptureFixture) -> None:
    Trainer(algorithm="baseline").fit(agent, [1, 2], test_dataset=[2, 3])
    assert [each.partition(":")[0] for each in warnings_of(caplog)] == [
        "lightning.test_dataset_overlaps dataset=train_dataset shared=1 of=2"
    ]
