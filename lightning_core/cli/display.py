"""What is shown while a run goes on: a live table on a terminal, lines elsewhere, or JSON lines."""

import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, Literal

from rich.console import Console
from rich.live import Live
from rich.table import Table

from lightning_core.adapter.usage import Usage
from lightning_core.algorithm import describe_failure
from lightning_core.algorithm.estimates import Estimate
from lightning_core.cli.console import JsonLines, metric_words, plain_console, seconds, stdout_for_json, usage_words
from lightning_core.cli.texts import visible
from lightning_core.config import Job
from lightning_core.runs import RolloutCounts
from lightning_core.runs.metrics import merged
from lightning_core.runs.standing import Snapshot, Standing, expected_rollouts
from lightning_core.types import Attempt, Rollout, Span

logger = logging.getLogger(__name__)

LIVE_INTERVAL_SECONDS = 0.25
"""The time between two looks of the live table."""
PLAIN_INTERVAL_SECONDS = 5.0
"""The least time between two lines about rollouts where there is no terminal."""

Kind = Literal["auto", "plain", "json"]
"""`auto`: a live table on a terminal, lines elsewhere."""


class Display:
    """Hooks that show how a run stands. `stop` ends it whatever became of the run; it may be called again.

    Args:
        console: Where people read; with `json` on stderr.
        standing: What is shown; None for a new one.
    """

    stays_with_algorithm = True
    """It shows rollouts of runner processes here, and is not sent to them."""
    json: JsonLines | None = None
    """Where programs read; None where people do."""
    unwritten: OSError | None = None
    """Why the output could not be written, such as a disk that is full. The run goes on without it."""

    def __init__(self, console: Console, standing: Standing | None = None) -> None:
        self.console = console
        self.standing = Standing() if standing is None else standing

    def lightning_run_start(self, run_id: str, kept: RolloutCounts) -> None:
        """Begin to show."""
        self.standing.begin(run_id, kept)
        self._started()

    def lightning_rollout_start(self, attempt: Attempt) -> None:
        """Count what runs."""
        self.standing.attempt_began(attempt)

    def lightning_rollout_end(
        self, rollout: Rollout, attempt: Attempt, reward: float | None, spans: Sequence[Span]
    ) -> None:
        """Count what ended."""
        usage = self.standing.attempt_ended(rollout, attempt, reward, spans)
        self._attempt_ended(rollout, attempt, reward, usage)

    def lightning_step_end(self, step: int, metrics: Mapping[str, float | None]) -> None:
        """Take over what the algorithm reports."""
        self.standing.step_ended(step, metrics)
        self._step_ended(step, metrics)

    def lightning_run_end(self, run_id: str, status: str) -> None:
        """Stop showing."""
        self.standing.end()
        self.stop()
        self._ended(run_id, status)

    def show_plan(self, plan: object) -> None:
        """Say what the run will do at most, before it starts."""
        self._print(f"planned: {plan}")

    def stop(self) -> None:
        """Give the terminal back."""

    def _started(self) -> None: ...

    def _attempt_ended(self, rollout: Rollout, attempt: Attempt, reward: float | None, usage: Usage) -> None: ...

    def _step_ended(self, step: int, metrics: Mapping[str, float | None]) -> None: ...

    def _ended(self, run_id: str, status: str) -> None: ...

    def _print(self, text: str) -> None:
        if self.console.quiet:
            return
        try:
            self.console.print(text)
        except OSError as exc:
            self.unwritten = exc
            self.console.quiet = True
        except SystemExit:  # rich ends the process when the reader of its output is gone
            self.console.quiet = True


class LiveDisplay(Display):
    """A table on a terminal, renewed some times a second; it disappears at the end."""

    _live: Live | None = None

    def _started(self) -> None:
        self._live = Live(get_renderable=self.table, console=self.console, auto_refresh=False, transient=True)
        self._live.start(refresh=True)
        self._is_over = threading.Event()
        # A thread, so that an agent that blocks the event loop does not stop the clock.
        self._renewing = threading.Thread(target=self._renew, args=(self._live, self._is_over), daemon=True)
        self._renewing.start()

    def stop(self) -> None:
        live, self._live = self._live, None
        if live is not None:
            self._is_over.set()
            self._renewing.join()
            live.stop()

    def table(self) -> Table:
        """Return how it stands now, as a table."""
        return table_of(self.standing.snapshot())

    @staticmethod
    def _renew(live: Live, is_over: threading.Event) -> None:
        while not is_over.wait(LIVE_INTERVAL_SECONDS):
            live.refresh()


class LineDisplay(Display):
    """A line at each step, and every few seconds."""

    _last_seconds = 0.0

    def _started(self) -> None:
        self._last_seconds = 0.0
        now = self.standing.snapshot()
        self._line(now, f"run {now.run_id} started")

    def _attempt_ended(self, rollout: Rollout, attempt: Attempt, reward: float | None, usage: Usage) -> None:
        if self.standing.elapsed_seconds - self._last_seconds >= PLAIN_INTERVAL_SECONDS:
            now = self.standing.snapshot()
            self._line(now, standing_words(now))

    def _step_ended(self, step: int, metrics: Mapping[str, float | None]) -> None:
        now = self.standing.snapshot()
        shown = ", ".join(f"{visible(name)} {words}" for name, words in metric_words(merged({}, metrics)).items())
        self._line(now, f"step {step}: {shown}; {standing_words(now)}")

    def _ended(self, run_id: str, status: str) -> None:
        now = self.standing.snapshot()
        self._line(now, f"run {run_id} {status}; {standing_words(now)}")

    def _line(self, now: Snapshot, text: str) -> None:
        self._last_seconds = now.elapsed_seconds
        self._print(f"[{now.elapsed_seconds:6.1f} s] {text}")


class JsonDisplay(Display):
    """An object for each event, as `docs/command-line.md` has them."""

    def __init__(self, console: Console, json: JsonLines, standing: Standing | None = None) -> None:
        super().__init__(console, standing)
        self.json: JsonLines = json

    def show_plan(self, plan: object) -> None:
        self.json.write({"event": "plan", "text": str(plan), "rollouts": getattr(plan, "rollouts", None)})

    def _started(self) -> None:
        self.json.write({"event": "run_start", "run_id": self.standing.snapshot().run_id})

    def _attempt_ended(self, rollout: Rollout, attempt: Attempt, reward: float | None, usage: Usage) -> None:
        self.json.write(
            {
                "event": "attempt_end",
                "elapsed_seconds": round(self.standing.elapsed_seconds, 3),
                "rollout_id": rollout.rollout_id,
                "attempt_id": attempt.attempt_id,
                "attempt": attempt.sequence_id,
                "mode": rollout.mode,
                "resources_id": rollout.resources_id,
                "rollout_status": rollout.status,
                "attempt_status": attempt.status,
                "reward": reward,
                "failure": None if attempt.status == "succeeded" else describe_failure(rollout),
                "usage": asdict(usage),
            }
        )

    def _step_ended(self, step: int, metrics: Mapping[str, float | None]) -> None:
        standing = standing_record(self.standing.snapshot())
        self.json.write({"event": "step_end", "step": step, "metrics": dict(metrics), "standing": standing})

    def _ended(self, run_id: str, status: str) -> None:
        standing = standing_record(self.standing.snapshot())
        failures = [asdict(failure) for failure in self.standing.failures()]
        self.json.write(
            {"event": "run_end", "run_id": run_id, "status": status, "standing": standing, "failures": failures}
        )


@contextmanager
def reporting(kind: Kind = "auto", *, console: Console | None = None) -> Iterator[Display]:
    """Give a display to a `with` block, to be handed to a trainer as a plugin; the terminal is as before after it.

    Args:
        kind: How to show it. With `json`, stdout has nothing but JSON during the block, and `display.console` writes
            to stderr.
        console: Where people read; None for stdout.
    """
    if kind == "json":
        with stdout_for_json() as lines:
            yield JsonDisplay(Console(stderr=True, markup=False, emoji=False, highlight=False, soft_wrap=True), lines)
        return
    console = plain_console() if console is None else console
    display = LiveDisplay(console) if kind == "auto" and console.is_terminal else LineDisplay(console)
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
    algorithm, initial = job.trainer.algorithm, job.trainer.initial_resources
    if algorithm is None:
        return
    plan = job.plan()
    held_out = 0 if job.test_dataset is None else len(job.test_dataset) * (1 if initial is None else 2)
    display.standing.expected_rollouts = expected_rollouts(
        algorithm, plan, train_dataset=job.train_dataset, val_dataset=job.val_dataset, held_out=held_out
    )
    if plan is not None:
        display.show_plan(plan)
    limit = job.trainer.max_rollouts
    planned, runners = display.standing.expected_rollouts, job.trainer.n_runners
    runners *= getattr(job.trainer.strategy, "concurrency", 1)
    if planned is not None and limit is not None and limit * runners < planned:
        logger.warning(
            "lightning.too_few_rollouts max_rollouts=%d runners=%d planned=%d: the runners stop after %d rollouts; if "
            "the algorithm needs more, the run fails then, with the best so far",
            limit,
            runners,
            planned,
            limit * runners,
        )


def table_of(now: Snapshot) -> Table:
    """Return how a run stands, as a table of what is known."""
    table = Table.grid(padding=(0, 2))
    remaining = (
        "" if now.remaining_seconds is None else f", about {seconds(max(1, round(now.remaining_seconds)))} remaining"
    )
    table.add_row("elapsed", f"{now.elapsed_seconds:.0f} s{remaining}")
    table.add_row("rollouts", rollout_words(now))
    if now.reward is not None:
        table.add_row("reward", str(now.reward))
    if now.versions > 1 and now.best is not None:
        table.add_row("best so far", f"{now.best} of {now.versions} versions; the first {now.first}")
    if now.usage.calls:
        table.add_row("agent", usage_words(now.usage))
    if now.step:
        table.add_row("step", str(now.step))
    for name, words in metric_words(now.metrics).items():
        table.add_row(visible(name), words)
    return table


def rollout_words(now: Snapshot) -> str:
    """Say how many rollouts there were, as in `12 done, 1 failed, 4 running`."""
    words = f"{now.done:,} done, {now.failed:,} failed, {now.running:,} running"
    words += f", {now.retried:,} retried" if now.retried else ""
    words += f", {now.unrewarded:,} without a reward" if now.unrewarded else ""
    return words if now.expected is None else f"{words}, of at most {now.expected:,}"


def standing_words(now: Snapshot) -> str:
    """Say how a run stands in one line."""
    parts = [rollout_words(now)]
    if now.reward is not None:
        parts.append(f"reward {now.reward}")
    if now.versions > 1 and now.best is not None:
        parts.append(f"best {now.best}")
    if now.usage.calls:
        parts.append(f"the agent made {usage_words(now.usage)}")
    if now.remaining_seconds is not None:
        parts.append(f"about {seconds(max(1, round(now.remaining_seconds)))} remaining")
    return "; ".join(parts)


def standing_record(now: Snapshot) -> dict[str, Any]:
    """Return how a run stands as JSON has it."""
    return {
        "elapsed_seconds": round(now.elapsed_seconds, 3),
        "remaining_seconds": None if now.remaining_seconds is None else round(now.remaining_seconds, 3),
        "done": now.done,
        "failed": now.failed,
        "running": now.running,
        "retried": now.retried,
        "unrewarded": now.unrewarded,
        "expected": now.expected,
        "reward": _estimate_record(now.reward),
        "best": _estimate_record(now.best),
        "best_resources_id": now.best_resources_id,
        "first": _estimate_record(now.first),
        "versions": now.versions,
        "usage": asdict(now.usage),
    }


def _estimate_record(estimate: Estimate | None) -> dict[str, Any] | None:
    return None if estimate is None else asdict(estimate)
