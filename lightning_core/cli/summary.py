"""What came of a run, for people and for files."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from lightning_core.errors import LightningError
from lightning_core.runs import FitResult
from lightning_core.types import NamedResources, PromptTemplate, Resource

_INITIAL = "_initial"
MAX_FAILURES_SHOWN = 5


def print_summary(console: Console, result: FitResult, initial: NamedResources | None) -> None:
    """Print the status, each metric before and after, why rollouts failed, and the best prompts."""
    counts = result.rollouts
    console.print(
        f"\n[bold]{result.status}[/] in {result.duration_seconds:.1f} s: {counts.succeeded} rollouts succeeded, "
        f"{counts.failed} failed, {counts.retried} retried"
        + (f", {counts.cancelled} cancelled" if counts.cancelled else "")
        + (f", {counts.unfinished} unfinished" if counts.unfinished else ""),
        highlight=False,
    )
    for line in metric_lines(result.metrics):
        console.print(f"  {line}", markup=False, highlight=False)
    for failure in list(result.failures)[:MAX_FAILURES_SHOWN]:
        console.print(f"  failed {failure.count}x: {failure.cause} (for one, {failure.example})", markup=False)
    if len(result.failures) > MAX_FAILURES_SHOWN:
        console.print(f"  and {len(result.failures) - MAX_FAILURES_SHOWN} more causes", markup=False)
    if result.abandoned_agents:
        console.print(
            f"  {result.abandoned_agents} agents ran out of time and could not be stopped; "
            f"{result.dropped_spans} spans that they emitted later were dropped"
        )
    for name, resource in (result.best_resources or {}).items():
        if isinstance(resource, PromptTemplate):
            unchanged = initial is not None and initial.get(name) == resource
            console.print(f"\n[bold]{escape(name)}[/]{' (unchanged)' if unchanged else ', the best found:'}")
            console.print(resource.template, markup=False, highlight=False)


def metric_lines(metrics: dict[str, float]) -> list[str]:
    """Return a line for each metric; one that has an `..._initial` is shown with its change."""
    lines = []
    for name, value in metrics.items():
        if name.endswith(_INITIAL) and name.removesuffix(_INITIAL) in metrics:
            continue
        before = metrics.get(name + _INITIAL)
        change = "" if before is None else f"{before:.3f} → "
        delta = "" if before is None else f" ({value - before:+.3f})"
        lines.append(f"{name}: {change}{value:.4g}{delta}" if before is None else f"{name}: {change}{value:.3f}{delta}")
    return lines


def write_result(path: Path, result: FitResult) -> None:
    """Write a result as JSON, without keys.

    Raises:
        LightningError: When the file cannot be written.
    """
    record: dict[str, Any] = asdict(result)
    resources = result.best_resources
    record["best_resources"] = None if resources is None else {n: _without_key(r) for n, r in resources.items()}
    try:
        path.write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    except OSError as exc:
        raise LightningError(f"cannot write the result to {path}: {exc.strerror}") from exc


def _without_key(resource: Resource) -> dict[str, Any]:
    return resource.model_dump(exclude={"api_key"})
