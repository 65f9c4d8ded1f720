"""What a command shows of a run: a panel on a terminal, lines elsewhere, JSON lines, or a file with its result."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from lightning_core.adapter.usage import Usage
from lightning_core.algorithm import describe_failure
from lightning_core.cli.console import JsonLines, plain_console, stdout_for_json, to_json
from lightning_core.config import Job
from lightning_core.display.live import Display, LineDisplay, LiveDisplay
from lightning_core.errors import LightningError
from lightning_core.runs import FitResult
from lightning_core.runs.recording import resources_record
from lightning_core.runs.standing import Standing
from lightning_core.types import Attempt, Rollout


def result_record(result: FitResult) -> dict[str, Any]:
    """Return a result as JSON has it, without keys. A number that is not finite is null."""
    record: dict[str, Any] = asdict(result)
    for name in ("initial_resources", "best_resources"):
        resources = getattr(result, name)
        record[name] = None if resources is None else resources_record(resources)
    record["folder"] = None if result.folder is None else str(result.folder)
    return dict(to_json(record))


def write_result(path: Path, result: FitResult) -> None:
    """Write a result as JSON, without keys.

    Raises:
        LightningError: When the file cannot be written.
    """
    try:
        path.write_text(json.dumps(result_record(result), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    except OSError as exc:
        raise LightningError(f"cannot write the result to {path}: {exc.strerror}") from exc


class JsonDisplay(Display):
    """An object for each event, as `docs/command-line.md` has them.

    Args:
        console: Where people read, on stderr.
        json: Where programs read.
        standing: What is shown; None for a new one.
    """

    def __init__(self, console: Console, json: JsonLines, standing: Standing | None = None) -> None:
        super().__init__(console, standing)
        self.json = json

    def show_plan(self, plan: object) -> None:
        self._tell("plan", text=str(plan), rollouts=getattr(plan, "rollouts", None))

    def _started(self) -> None:
        self._tell("run_start", run_id=self.standing.snapshot().run_id)

    def show_result(self, result: FitResult) -> None:
        """Write the result as an object."""
        self._tell("result", **result_record(result))

    def show_report(self, result: FitResult) -> None:
        """Nothing: the report is in the folder that the result names."""

    def _attempt_ended(self, rollout: Rollout, attempt: Attempt, reward: float | None, usage: Usage) -> None:
        self._tell(
            "attempt_end",
            elapsed_seconds=round(self.standing.elapsed_seconds, 3),
            rollout_id=rollout.rollout_id,
            attempt_id=attempt.attempt_id,
            attempt=attempt.sequence_id,
            mode=rollout.mode,
            resources_id=rollout.resources_id,
            rollout_status=rollout.status,
            attempt_status=attempt.status,
            reward=reward,
            failure=None if attempt.status == "succeeded" else describe_failure(rollout),
            usage=asdict(usage),
        )

    def _step_ended(self, step: int, metrics: Mapping[str, float | None]) -> None:
        standing = self.standing.snapshot().record()
        self._tell("step_end", step=step, metrics=dict(metrics), standing=standing)

    def _ended(self, run_id: str, status: str) -> None:
        standing = self.standing.snapshot().record()
        failures = [asdict(failure) for failure in self.standing.failures()]
        self._tell("run_end", run_id=run_id, status=status, standing=standing, failures=failures)

    def _tell(self, event: str, **fields: Any) -> None:
        self._write(partial(self.json.write, {"event": event, **fields}))


@contextmanager
def reporting(*, as_json: bool) -> Iterator[Display]:
    """Give a display to a `with` block, to be handed to a trainer as a plugin; the terminal is as before after it.

    Args:
        as_json: Whether stdout has nothing but JSON during the block, and `display.console` writes to stderr. Else it
            is a panel on a terminal, and lines elsewhere.
    """
    if as_json:
        with stdout_for_json() as lines:
            yield JsonDisplay(Console(stderr=True, markup=False, emoji=False, highlight=False, soft_wrap=True), lines)
        return
    console = plain_console()
    display = LiveDisplay(console) if console.is_interactive else LineDisplay(console)
    try:
        yield display
    finally:
        display.stop()


def announce(display: Display, job: Job) -> None:
    """Say what a job will do at most, where its algorithm knows it.

    Raises:
        ConfigError: When the algorithm cannot use what the config gives it.
        AlgorithmError: When it knows already that something else is missing.
    """
    plan = job.plan()
    if plan is None:
        return
    display.show_plan(plan)
    display.standing.expected_rollouts = plan.rollouts
