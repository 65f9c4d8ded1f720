"""When a trainer tells plugins what happens."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from lightning_core import LightningStore, Trainer, rollout
from lightning_core.algorithm import algo
from lightning_core.algorithm.base import Reporter
from lightning_core.errors import AlgorithmError
from lightning_core.runs import FailedHook
from lightning_core.types import Attempt, Rollout


class Diary:
    """Writes down all that it is told."""

    def __init__(self) -> None:
        self.entries: list[tuple[Any, ...]] = []

    def lightning_run_start(self, run_id: str) -> None:
        self.entries.append(("start", run_id))

    def lightning_rollout_end(self, rollout: Rollout, attempt: Attempt, reward: float | None) -> None:
        self.entries.append(("rollout", rollout.status, attempt.status, reward))

    async def lightning_step_end(self, step: int, metrics: Mapping[str, float]) -> None:
        await asyncio.sleep(0)
        self.entries.append(("step", step, dict(metrics)))

    async def lightning_run_end(self, run_id: str, status: str) -> None:
        await asyncio.sleep(0)
        self.entries.append(("end", run_id, status))


@pytest.fixture
def diary() -> Diary:
    return Diary()


@rollout
async def solve(task: float) -> float:
    return task


def test_start_comes_first_and_end_comes_last_once(diary: Diary) -> None:
    result = Trainer(algorithm="baseline", hooks=[diary]).fit(solve, [1.0, 0.0])
    assert diary.entries == [
        ("start", result.run_id),
        ("rollout", "succeeded", "succeeded", 1.0),
        ("rollout", "succeeded", "succeeded", 0.0),
        ("step", 1, {"train_reward": 0.5}),
        ("end", result.run_id, "succeeded"),
    ]


def test_failed_run_is_told_as_failed_with_every_step_before(diary: Diary) -> None:
    @algo
    async def fails(report: Reporter) -> None:
        report({"reward": 0.1}, step=1)
        report({"reward": 0.2}, step=2)
        raise AlgorithmError("diverged")

    with pytest.raises(AlgorithmError, match="diverged"):
        Trainer(algorithm=fails, hooks=[diary]).fit(solve)
    assert [entry[0] for entry in diary.entries] == ["start", "step", "step", "end"]
    assert diary.entries[-1][2] == "failed"


def test_plugin_that_cannot_start_stops_the_run_before_anything_else(diary: Diary) -> None:
    begun: list[str] = []

    class Broken:
        def lightning_run_start(self, run_id: str) -> None:
            raise OSError("port 8080 is taken")

        def lightning_run_end(self, run_id: str, status: str) -> None:
            begun.append("end of what did not start")

    @algo
    async def never(store: LightningStore) -> None:
        begun.append("algorithm")

    with pytest.raises(OSError, match="port 8080 is taken"):
        Trainer(algorithm=never, hooks=[diary, Broken()]).fit(solve)
    assert begun == []
    assert [entry[0] for entry in diary.entries] == ["start", "end"]
    assert diary.entries[-1][2] == "failed"


def test_run_starts_when_every_plugin_has_started() -> None:
    events: list[str] = []

    class Slow:
        async def lightning_run_start(self, run_id: str) -> None:
            events.append("starting")
            await asyncio.sleep(0.01)
            events.append("started")

    @algo
    async def notes() -> None:
        events.append("algorithm")

    Trainer(algorithm=notes, hooks=[Slow()]).fit(solve)
    assert events == ["starting", "started", "algorithm"]


def test_plugin_that_fails_on_the_way_does_not_stop_the_run(diary: Diary, caplog: pytest.LogCaptureFixture) -> None:
    class Clumsy:
        def lightning_rollout_end(self) -> None:
            raise ZeroDivisionError("rollout")

        def lightning_step_end(self) -> None:
            raise ZeroDivisionError("step")

        def lightning_run_end(self) -> None:
            raise ZeroDivisionError("run")

    trainer = Trainer(algorithm="baseline", hooks=[Clumsy(), diary])
    before = trainer.fit(solve, [1.0])
    assert [each.count for each in before.failed_hooks] == [1, 1, 1]
    diary.entries.clear()
    result = trainer.fit(solve, [1.0, 1.0])
    assert result.status == "succeeded"
    assert [entry[0] for entry in diary.entries] == ["start", "rollout", "rollout", "step", "end"]
    assert "lightning.plugin_failed" in caplog.text
    assert result.failed_hooks == [
        FailedHook("Clumsy", "lightning_rollout_end", "ZeroDivisionError: rollout", 2),
        FailedHook("Clumsy", "lightning_step_end", "ZeroDivisionError: step", 1),
        FailedHook("Clumsy", "lightning_run_end", "ZeroDivisionError: run", 1),
    ]
