"""Runs and what is known of them, for `agl runs` and `agl resume`."""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.text import Text

from lightning_core.algorithm.estimates import number_text
from lightning_core.cli.options import hidden_keys
from lightning_core.errors import RunFolderError
from lightning_core.runs.folder import RunFolder, Standing, runs_in
from lightning_core.runs.manifest import Manifest, now
from lightning_core.runs.metrics import newest_of, read_metrics
from lightning_core.runs.recording import read_best
from lightning_core.runs.result import (
    MAX_CAUSE_CHARACTERS,
    RolloutCounts,
    metric_lines,
    more_budget,
    print_prompt,
    result_rows,
)
from lightning_core.texts import print_table, seconds, shortened
from lightning_core.types import PromptTemplate

_HEADER = ("id", "algorithm", "outcome", "reward", "rollouts", "start", "duration")


class LoadedRun(NamedTuple):
    """A run, as its folder says."""

    folder: RunFolder
    manifest: Manifest
    standing: Standing
    metrics: dict[str, float]
    """The newest value of each metric."""

    @property
    def ended_by(self) -> str | None:
        """The limit of the budget that ended it; None when none did."""
        result = self.manifest.result
        return None if result is None or result.budget is None else result.budget.ended_by

    @property
    def duration_seconds(self) -> float | None:
        """From its start to its end, or until now; None for one that was killed."""
        end = now() if self.standing == "running" else self.manifest.end
        return None if end is None else (end - self.manifest.start).total_seconds()

    @property
    def rewards(self) -> tuple[float | None, float | None]:
        """The mean reward before, and after; of one that has not ended, what its algorithm reported last."""
        comparison = None if self.manifest.result is None else self.manifest.result.comparison
        if comparison is not None:
            before = None if comparison.before is None else comparison.before.mean
            after = None if comparison.after is None else comparison.after.mean
            if comparison.difference is not None:
                before, after = comparison.difference.before, comparison.difference.after
            return before, after
        name = next(
            (each for each in ("test_reward", "val_reward", "train_reward", "reward") if each in self.metrics), ""
        )
        return self.metrics.get(f"{name}_initial"), self.metrics.get(name)


def load_run(folder: RunFolder) -> LoadedRun:
    """Read what is known of a run.

    Raises:
        RunFolderError: When a file of it is damaged.
    """
    manifest = folder.manifest()
    reports = read_metrics(folder.metrics_file)
    return LoadedRun(folder, manifest, folder.standing(manifest), newest_of(reports))


def load_runs(root: Path) -> tuple[list[LoadedRun], list[str]]:
    """Read all runs, in the order of their start; and say what is wrong with those that cannot be read."""
    loaded, broken = [], []
    for folder in runs_in(root):
        try:
            loaded.append(load_run(folder))
        except RunFolderError as exc:
            broken.append(str(exc))
    return sorted(loaded, key=lambda each: (each.manifest.start, each.folder.run_id)), broken


def run_record(run: LoadedRun) -> dict[str, Any]:
    """Return a run as JSON has it. What is not known is null."""
    before, after = run.rewards
    result = run.manifest.result
    return {
        "id": run.folder.run_id,
        "algorithm": run.manifest.algorithm,
        "outcome": run.standing,
        "ended_by": run.ended_by,
        "reward_before": before,
        "reward": before if after is None else after,
        "rollouts": None if result is None else asdict(result.rollouts),
        "start": run.manifest.start.isoformat(),
        "end": None if run.manifest.end is None else run.manifest.end.isoformat(),
        "duration_seconds": run.duration_seconds,
        "folder": str(run.folder.path),
    }


def print_run(console: Console, folder: RunFolder, manifest: Manifest) -> None:
    """Print the inputs of a run, and its result."""
    run = load_run(folder)
    _, algorithm, _, _, rollouts, start, duration = _row(run)
    console.print(Text(folder.run_id, style="bold"), f"  {run.standing}", sep="")
    rows = [("algorithm", algorithm), ("started", start), ("duration", duration), ("rollouts", rollouts)]
    rows += [("resumed", _resumed(each.time, each.changes)) for each in manifest.resumed]
    result = manifest.result
    if manifest.error is not None:
        rows.append(("error", shortened(manifest.error, MAX_CAUSE_CHARACTERS)))
    if manifest.conclusion is not None:
        rows.append((manifest.conclusion.name, manifest.conclusion.summary))
    lines = [("metric", line) for line in metric_lines(run.metrics, None)] if result is None else result_rows(result)
    rows += [(name, line.removeprefix(f"{name} ")) for name, line in lines]
    origin = manifest.origin
    if origin.config_file is not None:
        rows.append(("config", " ".join([origin.config_file, *(f"--set {each}" for each in origin.overrides)])))
    if origin.seed is not None:
        rows.append(("seed", str(origin.seed)))
    ours = [f"{name} {version}" for name, version in origin.versions.items() if name.startswith("lightning-")]
    rows += [("versions", ", ".join([f"Python {origin.python}", *ours]))] if origin.python else []
    if origin.git is not None:
        rows.append(("git", origin.git.commit[:12] + (", with uncommitted changes" if origin.git.dirty else "")))
    rows.append(("folder", str(folder.path)))
    rows += [("report", str(report))] if (report := folder.path / "report.html").is_file() else []
    for name, words in rows:
        console.print(f"  {name:<10} {words}")
    for name, resource in (read_best(folder.best_file) or {}).items():
        if isinstance(resource, PromptTemplate):
            print_prompt(console, name, None, resource)
    failed_from_the_start = run.standing == "failed" and result is not None and not result.rollouts.succeeded
    if run.standing not in ("running", "succeeded") and not failed_from_the_start:
        more = "".join(f" --set {key}=VALUE" for key in hidden_keys(origin.overrides))
        more += "" if result is None else more_budget(result.budget, origin.config)
        console.print()
        if origin.config_file is None:
            console.print(f"go on with it in its program: Trainer(run_dir=RunFolder({str(folder.path)!r}), ...)")
        else:
            console.print(f"go on with it: agl resume {folder.run_id}{more}")


def print_runs(runs: Sequence[LoadedRun]) -> None:
    """Print a table of runs."""
    print_table(_HEADER, [_row(run) for run in runs])


def _row(run: LoadedRun) -> tuple[str, ...]:
    duration, result = run.duration_seconds, run.manifest.result
    return (
        run.folder.run_id,
        run.manifest.algorithm,
        run.standing if run.ended_by is None else f"{run.standing} ({run.ended_by})",
        _reward_words(*run.rewards),
        "-" if result is None else _rollout_words(result.rollouts),
        run.manifest.start.astimezone().strftime("%Y-%m-%d %H:%M:%S"),
        "-" if duration is None else seconds(duration),
    )


def _reward_words(before: float | None, after: float | None) -> str:
    known = [number_text(value) for value in (before, after) if value is not None]
    return " → ".join(known) or "-"


def _rollout_words(counts: RolloutCounts) -> str:
    more = {"failed": counts.failed, "without a reward": counts.unrewarded, "left": counts.unfinished}
    return f"{counts.succeeded + counts.failed:,}" + "".join(
        f", {count:,} {name}" for name, count in more.items() if count
    )


def _resumed(time: datetime, changes: Sequence[str]) -> str:
    words = time.astimezone().strftime("%Y-%m-%d %H:%M:%S")
    return f"{words}, with changes: {'; '.join(changes)}" if changes else words
