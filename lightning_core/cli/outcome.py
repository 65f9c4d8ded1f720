"""How one rollout went, for people and for programs."""

from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.text import Text

from lightning_core.adapter.usage import read_usage
from lightning_core.algorithm import RolloutOutcome
from lightning_core.cli.summary import MAX_CAUSE_CHARACTERS, hook_lines
from lightning_core.cli.texts import shortened
from lightning_core.cli.tree import MAX_CHARACTERS, print_trace
from lightning_core.cli.words import seconds, usage_words
from lightning_core.runs import FitResult

_SPAN_FIELDS = {"sequence_id", "trace_id", "span_id", "parent_id", "name", "start_time", "end_time"}
_SPAN_FIELDS |= {"status", "attributes", "events"}


def print_outcome(console: Console, agent: str, outcome: RolloutOutcome, result: FitResult) -> None:
    """Print the trace of a rollout, and below it how it went.

    Args:
        console: See `plain_console`.
        agent: What it is called.
        outcome: What is told.
        result: Of the run that the rollout was all of.
    """
    title = Text(agent, style="bold").append(f"  {shortened(outcome.rollout.input, MAX_CHARACTERS)}", style="not bold")
    print_trace(console, title, outcome.spans)
    style = "bold green" if outcome.rollout.status == "succeeded" else "bold red"
    words = Text().append(outcome.rollout.status, style=style)
    duration, attempt = _duration_seconds(outcome), outcome.attempt
    if duration is not None:
        words.append(f" in {seconds(duration)}")
    if attempt is not None and attempt.sequence_id > 1:
        words.append(f", at attempt {attempt.sequence_id}")
    if outcome.reward is not None:
        words.append(f", reward {outcome.reward:g}")
    elif outcome.failure is not None:
        words.append(f": {shortened(outcome.failure, MAX_CAUSE_CHARACTERS)}")
    console.print(words)
    usage = read_usage(outcome.spans)
    if usage.calls:
        console.print(usage_words(usage))
    for line in hook_lines(result):
        console.print(Text(line, style="red"))


def outcome_record(outcome: RolloutOutcome, result: FitResult) -> dict[str, Any]:
    """Return how a rollout went, as `docs/command-line.md` has it."""
    rollout, attempt, duration = outcome.rollout, outcome.attempt, _duration_seconds(outcome)
    return {
        "event": "rollout",
        "rollout_id": rollout.rollout_id,
        "attempt": None if attempt is None else attempt.sequence_id,
        "task": rollout.input,
        "mode": rollout.mode,
        "status": rollout.status,
        "reward": outcome.reward,
        "failure": outcome.failure,
        "duration_seconds": None if duration is None else round(duration, 6),
        "usage": asdict(read_usage(outcome.spans)),
        "spans": [span.model_dump(include=_SPAN_FIELDS) for span in outcome.spans],
        "failed_hooks": [asdict(failed) for failed in result.failed_hooks],
    }


def _duration_seconds(outcome: RolloutOutcome) -> float | None:
    attempt = outcome.attempt
    return None if attempt is None or attempt.end_time is None else attempt.end_time - attempt.start_time
