"""What is shown while a run goes on: on a terminal, elsewhere, and for programs."""

import io
import json
import logging
import os
import pty
import subprocess
import sys
import termios
import threading
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.table import Table

from lightning_core import emit_annotation, rollout
from lightning_core.adapter.usage import Usage
from lightning_core.algorithm import algo, run_batch
from lightning_core.algorithm.base import Reporter
from lightning_core.algorithm.estimates import estimate
from lightning_core.cli.console import JsonLines
from lightning_core.cli.display import JsonDisplay
from lightning_core.display.live import Display, LineDisplay, LiveDisplay
from lightning_core.display.panel import panel
from lightning_core.runs import BudgetUse, Failure, RolloutCounts
from lightning_core.runs.standing import Snapshot, Standing
from lightning_core.store import LightningStore
from lightning_core.trainer import Trainer
from lightning_core.types import Attempt, AttemptedRollout, Dataset, PromptTemplate, Span, samples_of
from tests.cli.test_train import read_terminal
from tests.runs.test_standing import Seconds


@rollout
async def solve(task: int) -> float:
    """Asks a model, fails on negative tasks."""
    emit_annotation({"gen_ai.operation.name": "chat", "gen_ai.usage.input_tokens": 100, "gen_ai.usage.cost": 0.5})
    if task < 0:
        raise ValueError("negative")
    return float(task)


@algo
async def search(store: LightningStore, train_dataset: Dataset[Any], report: Reporter) -> None:
    """Tries two versions of the resources."""
    for step, text in enumerate(["[first]", "[second]"], start=1):
        resources = {"main_prompt": PromptTemplate(template=text)}
        version = (await store.add_resources(resources)).resources_id
        batch = await run_batch(store, samples_of(train_dataset), mode="val", resources_id=version)
        report({"[b]reward": batch.mean_reward or 0.0}, step=step, best_resources=resources)


def plain(file: io.StringIO, **options: Any) -> Console:
    return Console(file=file, markup=False, emoji=False, highlight=False, **options)


def fit(display: Display, *, algorithm: object = search) -> None:
    Trainer(algorithm=algorithm, progress=display).fit(solve, [1, 0])


def ended(resources_id: str, task: int, reward: float) -> tuple[AttemptedRollout, Attempt, float, list[Span]]:
    """Return what hooks are told of the end of a rollout."""
    attempt = Attempt(rollout_id="ro-1", attempt_id="at-1", sequence_id=1, start_time=0.0, status="succeeded")
    rollout = AttemptedRollout(
        rollout_id="ro-1",
        input=task,
        start_time=0.0,
        mode="val",
        resources_id=resources_id,
        status="succeeded",
        attempt=attempt,
    )
    return rollout, attempt, reward, []


def test_elsewhere_a_step_is_a_line_only_where_the_best_has_changed() -> None:
    file = io.StringIO()
    display = LineDisplay(plain(file, soft_wrap=True), Standing(Seconds()))
    display.standing.expected_rollouts = 2_000
    display.lightning_run_start("run-1", RolloutCounts(succeeded=1_000))
    for resources_id, reward in (("rs-1", 0.0), ("rs-2", 0.0), ("rs-3", 1.0)):
        for task in range(2):
            display.lightning_rollout_end(*ended(resources_id, task, reward))
        for step in range(3):  # as for each minibatch
            display.lightning_step_end(step, {"input_tokens": 26_550.0})
    display.lightning_run_end("run-1", "succeeded")
    assert file.getvalue().splitlines() == [
        "[   0.0 s] run run-1 started",
        f"[   0.0 s] reward {estimate([0.0, 0.0])}; 1,002 of 2,000 done",
        "[   0.0 s] best 1.00 (n=2); 1,006 of 2,000 done; about 1 s left",
    ]


def test_elsewhere_a_line_comes_from_time_to_time_although_no_rollout_ends() -> None:
    told = threading.Event()

    class Lines(io.StringIO):
        def write(self, text: str) -> int:
            if "under way" in text:
                told.set()
            return super().write(text)

    class Often(LineDisplay):
        interval_seconds = 0.01

    lines = Lines()
    display = Often(plain(lines, soft_wrap=True), Standing(Seconds()))
    display.standing.expected_rollouts = 26
    display.lightning_run_start("run-1", RolloutCounts())
    for number in range(8):
        display.lightning_rollout_start(ended("rs-1", number, 1.0)[1].model_copy(update={"worker_id": str(number)}))
    told.clear()
    assert told.wait(60)
    display.stop()
    assert lines.getvalue().splitlines()[-1] == "[   0.0 s] 0 of 26 done, 8 under way"


def drawn(now: Snapshot, *failures: Failure, width: int = 100) -> list[str]:
    file = io.StringIO()
    plain(file, width=width).print(panel(now, failures))
    return [line.rstrip() for line in file.getvalue().splitlines()]


KNOWN = Snapshot(
    elapsed_seconds=12.3,
    remaining_seconds=64.0,
    expected=20,
    done=6,
    failed=1,
    running=2,
    retried=1,
    reward=estimate([0.0, 1.0]),
    best=estimate([1.0, 1.0]),
    first=estimate([0.0]),
    versions=2,
    usage=Usage(3, 1200, 30, 0.0123),
    step=4,
    metrics={"[b]loss": 0.5, "val_reward": 0.75, "val_reward_low": 0.5, "val_reward_high": 1.0, "lost_branches": 0.0},
    rollouts_per_second=3.25,
    budget=BudgetUse({"usd": 5.0, "calls": 1000.0}, {"usd": 1.25, "calls": 250.0}),
)


def test_panel_tells_all_that_is_known() -> None:
    quarter = f"{'━' * 6:24}"
    assert drawn(KNOWN, Failure("ValueError: … apples", 1200, "ro-1", where="agent.py:12 in score")) == [
        f"rollouts     {'━' * 8:24} 6 of 20 done, 1 failed, 2 under way, 1 retried",
        "time         12 s, 3.25 rollouts/s, about 1 min 4 s left",
        "reward       0.50 (95% 0.09..0.91, n=2)",
        "best so far  1.00 (95% 0.34..1.00, n=2) of 2 versions; the first 0.00 (95% 0.00..0.79, n=1)",
        "val_reward   0.75 [0.500..1.000]",
        "step         4",
        "[b]loss      0.5",
        f"budget       {quarter} $1.25 of $5.00",
        f"budget       {quarter} 250 of 1,000 calls",
        "agent        3 model calls, 1,200 tokens in, 30 out, $0.0123",
        "failed       1,200x ValueError: … apples (agent.py:12 in score)",
    ]


def test_panel_stays_within_the_width_of_the_terminal() -> None:
    lines = drawn(KNOWN, *(Failure(f"{name}: {'x' * 500}", 1, "ro-1") for name in "ABCDE"), width=60)
    assert max(map(len, lines)) == 60
    assert [line.partition(":")[0] for line in lines[-4:]] == [
        "failed       1x A",
        "failed       1x B",
        "failed       1x C",
        "             and 2 more causes",
    ]


def test_drawing_that_fails_is_logged_once_and_the_run_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(LiveDisplay):
        def panel(self) -> Table:
            raise RuntimeError("no such terminal")

    file = io.StringIO()
    trainer = Trainer(algorithm=search, progress=Broken(plain(file, force_terminal=True, width=60)))
    assert trainer.fit(solve, [1, 0]).status == "succeeded"
    assert [record.message.partition(" ")[0] for record in caplog.records] == ["lightning.display_failed"]
    assert file.getvalue().count("\x1b[?25l") == file.getvalue().count("\x1b[?25h")


def test_logs_and_prints_go_above_the_panel(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    handler = logging.StreamHandler(terminal)
    logger = logging.getLogger("tests.of_a_user")
    logger.addHandler(handler)

    @rollout
    async def logs(task: int) -> float:
        logger.warning("the agent says %d", task)
        return 1.0

    try:
        display = LiveDisplay(plain(terminal, force_terminal=True, width=60))
        Trainer(algorithm="baseline", progress=display).fit(logs, [7])
    finally:
        logger.removeHandler(handler)
    assert handler.stream is terminal
    before, said, after = terminal.getvalue().partition("the agent says 7\n")
    assert said
    assert before.endswith("\x1b[2K")  # the panel was wiped
    assert "rollouts" in after


def test_new_causes_of_failures_are_lines_as_they_come() -> None:
    @rollout
    async def breaks(task: int) -> float:
        raise ValueError(f"cannot take {task}") if task % 2 else KeyError("apple")

    file = io.StringIO()
    trainer = Trainer(algorithm=search, progress=LineDisplay(plain(file, soft_wrap=True), Standing(Seconds())))
    trainer.fit(breaks, [1, 2, 3, 4])
    told = [line.partition("failed: ")[2] for line in file.getvalue().splitlines() if "] failed: " in line]
    assert sorted(each.partition(" (")[0] for each in told) == ["KeyError: 'apple'", "ValueError: cannot take 1"]


def test_programs_get_an_object_for_each_event() -> None:
    file = io.StringIO()
    fit(JsonDisplay(Console(stderr=True), JsonLines(file)))
    events = [json.loads(line) for line in file.getvalue().splitlines()]
    assert [event["event"] for event in events] == [
        "run_start",
        *["attempt_end"] * 2,
        "step_end",
        *["attempt_end"] * 2,
        "step_end",
        "run_end",
        "result",
    ]
    ended, step, end = events[1], events[3], events[-2]
    assert {name: ended[name] for name in ("attempt", "mode", "rollout_status", "attempt_status", "failure")} == {
        "attempt": 1,
        "mode": "val",
        "rollout_status": "succeeded",
        "attempt_status": "succeeded",
        "failure": None,
    }
    assert ended["usage"] == {"calls": 1, "input_tokens": 100, "output_tokens": None, "cost": 0.5}
    assert (step["step"], step["metrics"]) == (1, {"[b]reward": 0.5})
    assert step["standing"]["reward"]["n"] == 2
    assert (end["status"], end["run_id"]) == ("succeeded", events[0]["run_id"])
    assert (end["standing"]["done"], end["standing"]["running"], end["standing"]["versions"]) == (4, 0, 2)


def test_interrupt_gives_the_terminal_back(tmp_path: Path) -> None:
    (tmp_path / "hanging.py").write_text(
        "import asyncio, os, signal\n"
        "from lightning_core import rollout\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "@rollout\n"
        "async def hang(task):\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    await asyncio.Event().wait()\n"
    )
    (tmp_path / "config.yaml").write_text("agent: hanging:hang\nalgorithm: baseline\ntrain_dataset: [1]\n")
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "lightning_core", "train", str(tmp_path / "config.yaml")]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80"}
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment) as process:
        before = termios.tcgetattr(ours)
        status = process.wait(timeout=200)
        after = termios.tcgetattr(ours)
    os.close(theirs)
    shown = read_terminal(ours)
    assert status == 130
    assert after == before
    assert shown.count("\x1b[?25l") == shown.count("\x1b[?25h") == 1
    assert "interrupted" in shown


def test_what_programs_of_an_agent_print_does_not_get_between_json_lines() -> None:
    code = """
import subprocess, sys
from lightning_core.cli.console import stdout_for_json
with stdout_for_json() as lines:
    subprocess.run(["echo", "of a program"], check=True)
    print("of Python", flush=True)
    lines.write({"n": 1})
print("after")
"""
    completed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200)
    assert completed.stdout == '{"n": 1}\nafter\n'
    assert completed.stderr == "of a program\nof Python\n"
