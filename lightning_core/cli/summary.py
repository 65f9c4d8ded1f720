"""What came of a run, for people and for files."""

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from lightning_core.errors import LightningError
from lightning_core.runs import FitResult
from lightning_core.types import NamedResources, PromptTemplate, Resource

_INITIAL = "_initial"
MAX_FAILURES_SHOWN = 5
"""How many causes the summary lists."""


def print_summary(console: Console, result: FitResult, initial: NamedResources | None) -> None:
    """Print the status, each metric before and after, why rollouts failed, and the best prompts.

    Args:
        console: See `plain_console`.
        result: What is told.
        initial: What the run started from.
    """
    console.print()
    console.print(Text(result.status, style="bold"), _counts(result), sep="")
    for line in metric_lines(result.metrics):
        console.print(f"  {line}")
    for failure in list(result.failures)[:MAX_FAILURES_SHOWN]:
        console.print(f"  failed {failure.count}x: {failure.cause} (for one, {failure.example})")
    if len(result.failures) > MAX_FAILURES_SHOWN:
        console.print(f"  and {len(result.failures) - MAX_FAILURES_SHOWN} more causes")
    if result.abandoned_agents:
        console.print(
            f"  {result.abandoned_agents} agents could not be stopped when their time was over or the run ended; "
            f"{result.dropped_spans} spans that they emitted later were dropped"
        )
    for name, resource in (result.best_resources or {}).items():
        if isinstance(resource, PromptTemplate):
            unchanged = initial is not None and initial.get(name) == resource
            console.print()
            console.print(Text(name, style="bold"), " (unchanged)" if unchanged else ", the best found:", sep="")
            console.print(resource.template)


def _counts(result: FitResult) -> str:
    counts = result.rollouts
    return (
        f" in {result.duration_seconds:.1f} s: {counts.succeeded} rollouts succeeded, {counts.failed} failed, "
        f"{counts.retried} retried"
        + (f", {counts.cancelled} cancelled" if counts.cancelled else "")
        + (f", {counts.unfinished} unfinished" if counts.unfinished else "")
    )


def metric_lines(metrics: dict[str, float]) -> list[str]:
    """Return a line for each metric; one that has an `..._initial` is shown with its change."""
    lines = []
    for name, value in metrics.items():
        before = metrics.get(name + _INITIAL)
        if before is not None:
            lines.append(f"{name}: {before:.3f} → {value:.3f} ({value - before:+.3f})")
        elif not name.endswith(_INITIAL) or name.removesuffix(_INITIAL) not in metrics:
            lines.append(f"{name}: {value:.4g}")
    return lines


def write_result(path: Path, result: FitResult) -> None:
    """Write a result as JSON, without keys. A metric that is not finite becomes null, as JSON has no such number.

    Raises:
        LightningError: When the file cannot be written.
    """
    record: dict[str, Any] = asdict(result)
    resources = result.best_resources
    record["metrics"] = {name: value if math.isfinite(value) else None for name, value in result.metrics.items()}
    record["best_resources"] = None if resources is None else {n: _without_key(r) for n, r in resources.items()}
    try:
        path.write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    except OSError as exc:
        raise LightningError(f"cannot write the result to {path}: {exc.strerror}") from exc


def _without_key(resource: Resource) -> dict[str, Any]:
    return resource.model_dump(exclude={"api_key"})
