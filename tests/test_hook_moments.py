"""The moments of runs and rollouts, as plugins see them when agents really run."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import pytest

from lightning_core import (
    InMemoryLightningStore,
    LitAgentRunner,
    OtelTracer,
    Trainer,
    emit_message,
    emit_reward,
    rollout,
)
from lightning_core.algorithm import algo
from lightning_core.runs import FailedHook
from lightning_core.tracer import get_active_tracer
from lightning_core.types import Attempt, Hook, Rollout, Span


@rollout
async def solver(task: int) -> float:
    """An agent that is half as good as the task is high, and refuses what is negative."""
    emit_message("working")
    if task < 0:
        raise ValueError("negative")
    return task / 2


class Diary:
    """Writes down every moment, and what was true then."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.names: list[list[str]] = []

    def lightning_run_start(self) -> None:
        self.log.append("run start")

    async def lightning_rollout_start(self, rollout: Rollout, attempt: Attempt) -> None:
        await asyncio.sleep(0)
        self.log.append(f"rollout start {rollout.input} {attempt.status} traced={get_active_tracer() is not None}")

    def lightning_trace_start(self, tracer: Any) -> None:
        self.log.append(f"trace start traced={get_active_tracer() is tracer}")
        emit_message("before")

    def lightning_trace_end(self, tracer: Any) -> None:
        self.log.append(f"trace end traced={get_active_tracer() is tracer}")
        emit_message("after")

    def lightning_rollout_end(
        self, rollout: Rollout, attempt: Attempt, reward: float | None, spans: Sequence[Span]
    ) -> None:
        self.log.append(f"rollout end {rollout.status} {attempt.status} {reward}")
        self.names.append([span.name.removeprefix("agentlightning.") for span in spans])

    def lightning_run_end(self, status: str) -> None:
        self.log.append(f"run end {status}")


def test_every_moment_is_told_in_its_order() -> None:
    diary = Diary()
    Trainer(algorithm="baseline", hooks=diary).fit(solver, [3])
    assert diary.log == [
        "run start",
        "rollout start 3 preparing traced=False",
        "trace start traced=True",
        "trace end traced=True",
        "rollout end succeeded succeeded 1.5",
        "run end succeeded",
    ]
    assert diary.names == [["message", "message", "annotation", "message"]]


async def test_the_end_is_told_of_an_agent_that_failed_too() -> None:
    diary = Diary()
    runner = LitAgentRunner(OtelTracer())
    with (
        runner.run_context(agent=solver, store=InMemoryLightningStore(), hooks=[diary]),  # type: ignore[arg-type]
        pytest.raises(ValueError, match="negative"),
    ):
        await runner.step(-1)
    assert diary.log[2:] == ["trace end traced=True", "rollout end failed failed None"]


class Critic(Hook):
    """A listener as agentlightning 0.3 has them, which rewards what the agent did."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, int]] = []

    async def on_trace_end(self, *, agent: Any, runner: Any, tracer: Any, rollout: Any) -> None:
        emit_reward(0.25 * len(tracer.get_last_trace()))

    async def on_rollout_end(self, *, agent: Any, runner: Any, rollout: Any, spans: Any) -> None:
        self.seen.append((type(agent).__name__, len(spans)))


@rollout
async def silent(task: int) -> None:
    """An agent that rewards itself with nothing."""
    emit_message("working")


def test_a_listener_of_agentlightning_can_reward_what_it_sees() -> None:
    critic = Critic()
    result = Trainer(algorithm="baseline", hooks=critic).fit(silent, [1, 2])
    assert result.metrics["train_reward"] == 0.25
    assert [count for _, count in critic.seen] == [2, 2]


class Broken:
    """Fails at every moment but the start of a run."""

    def lightning_rollout_start(self) -> None:
        raise RuntimeError("start")

    async def lightning_trace_start(self) -> None:
        raise RuntimeError("trace start")

    def lightning_trace_end(self) -> None:
        raise SystemExit("trace end")

    async def lightning_rollout_end(self) -> None:
        gone = asyncio.create_task(asyncio.Event().wait())
        gone.cancel()
        await gone

    def lightning_step_end(self) -> None:
        raise ZeroDivisionError("step")

    def lightning_run_end(self) -> None:
        raise ZeroDivisionError("run")


OURS = "lightning_core.errors.LightningError: plugin 'Broken'"


def test_a_broken_plugin_neither_stops_a_run_nor_passes_silently(caplog: pytest.LogCaptureFixture) -> None:
    diary = Diary()
    trainer = Trainer(algorithm="baseline", hooks=[Broken(), diary])
    with caplog.at_level(logging.ERROR):
        result = trainer.fit(solver, [1, 2, 3])
    assert (result.status, result.rollouts.succeeded) == ("succeeded", 3)
    assert result.metrics["train_reward"] == 1.0
    assert result.failed_hooks == [
        FailedHook("Broken", "lightning_rollout_start", "RuntimeError: start", 3),
        FailedHook("Broken", "lightning_trace_start", "RuntimeError: trace start", 3),
        FailedHook("Broken", "lightning_trace_end", f"{OURS} tried to end the process", 3),
        FailedHook("Broken", "lightning_rollout_end", f"{OURS} waited for something that was cancelled", 3),
        FailedHook("Broken", "lightning_step_end", "ZeroDivisionError: step", 1),
        FailedHook("Broken", "lightning_run_end", "ZeroDivisionError: run", 1),
    ]
    assert caplog.text.count("lightning.plugin_failed") == 6
    assert [moment.split()[1] for moment in diary.log].count("end") == 7
    again = trainer.fit(solver, [1])
    assert [each.count for each in again.failed_hooks] == [1] * 6


def test_a_plugin_that_cannot_start_stops_the_run_before_anything_else() -> None:
    diary, begun = Diary(), list[str]()

    class CannotStart:
        def lightning_run_start(self) -> None:
            raise OSError("port 8080 is taken")

        def lightning_run_end(self) -> None:
            begun.append("end of what did not start")

    @algo
    async def never() -> None:
        begun.append("algorithm")

    with pytest.raises(OSError, match="port 8080 is taken"):
        Trainer(algorithm=never, hooks=[diary, CannotStart()]).fit(solver)
    assert begun == []
    assert diary.log == ["run start", "run end failed"]


async def test_nothing_is_looked_up_for_an_end_that_nobody_listens_to(monkeypatch: pytest.MonkeyPatch) -> None:
    store = InMemoryLightningStore()
    looked_up: list[str] = []
    look_up = store.get_rollout_by_id

    async def counted(rollout_id: str) -> Rollout | None:
        looked_up.append(rollout_id)
        return await look_up(rollout_id)

    monkeypatch.setattr(store, "get_rollout_by_id", counted)
    await store.enqueue_rollout(4)
    runner = LitAgentRunner(OtelTracer(), max_rollouts=1)
    with runner.run_context(agent=solver, store=store):
        await runner.iter()
    assert looked_up == []
