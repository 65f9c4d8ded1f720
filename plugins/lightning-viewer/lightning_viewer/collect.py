"""What is known of a run, as JSON: the report embeds it, and the terminal prints from it."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

from lightning_core.runs.folder import RunFolder
from lightning_core.runs.metrics import read_metrics
from lightning_core.runs.recording import read_best
from lightning_core.secrets import without_secrets
from lightning_core.store import LightningStore
from lightning_viewer.aggregates import MAX_INPUT, Aggregates, Filter, Row, short_json
from lightning_viewer.compare import change, compare_versions
from lightning_viewer.reading import read_aggregates
from lightning_viewer.traces import read_trace

FORMAT = 1
"""The version of the format that `collect` returns."""

MAX_TRACES = 200
"""How many traces a report holds, unless told otherwise."""

MAX_TRACE_CHARACTERS = 12_000_000
"""How much text all traces of a report hold together, so that the file stays below 20 MB."""

MAX_TRACED_INPUT = 20_000
"""How many characters of an input a report holds where it has the trace; a longer one is cut short where it is long."""

MAX_ROW_CHARACTERS = 5_000_000
"""How much text the rollouts of a report hold together, with their inputs."""

MAX_COMPARED_CHARACTERS = 1_000_000
"""How much text the comparisons of versions hold together."""

MAX_CHANGED = 20
"""How many samples each of them shows."""

RunData = dict[str, Any]
"""What `collect` returns: JSON values."""


async def collect(folder: RunFolder, store: LightningStore, *, max_traces: int = MAX_TRACES) -> RunData:
    """Read a run.

    Args:
        folder: The folder of the run.
        store: Where its rollouts and spans are.
        max_traces: How many traces to include. Failed rollouts come first, then those whose sample changed most from
            the first resources to the best, then the worst, then the best.

    Returns:
        JSON values, without secrets: `run`, `curve`, `counts`, `failures`, `resources`, ... of all rollouts;
        `rollouts` and `inputs`, as many as fit, the most telling first chosen; `traces`; `left_out`, how many of which
        are not there. `version_changes` has what `compare_versions` says of each version against its parent, the
        first and the best, as many as fit.

    Raises:
        RunFolderError: When a file of the run is damaged.
    """
    known = await read_aggregates(store)
    best_number = known.number_of(read_best(folder.best_file))
    rollouts = _most_telling(known, best_number)
    rows, inputs = _within(known, rollouts)
    places = {each["id"]: each["sample"] for each in rows}
    traces, characters = {}, 0
    for row in rollouts[:max_traces]:
        trace = await read_trace(store, row.rollout_id)
        length = len(json.dumps(trace, default=str))
        if characters + length <= MAX_TRACE_CHARACTERS:
            characters += length
            traces[row.rollout_id] = trace
            whole = await store.get_rollout_by_id(row.rollout_id)
            text = "" if whole is None else short_json(whole.input, MAX_TRACED_INPUT)
            if len(text) > MAX_INPUT and characters + len(text) <= MAX_TRACE_CHARACTERS:
                characters += len(text)
                inputs[places[row.rollout_id]] = json.loads(text)
    return {
        **summarise(known, folder, folder.run_id),
        "rollouts": rows,
        "inputs": inputs,
        "version_changes": _version_changes(known, best_number),
        "traces": traces,
        "left_out": {"traces": len(rollouts) - len(traces), "rollouts": len(rollouts) - len(rows)},
    }


def summarise(known: Aggregates, folder: RunFolder | None, run_id: str) -> RunData:
    """Return what the file and the live page say of a run as a whole.

    Args:
        known: What its store says.
        folder: The run's folder, where there is one on this machine.
        run_id: The run's id.

    Raises:
        RunFolderError: When a file of the run is damaged.
    """
    numbers = known.summary()
    if folder is None:
        run = dict.fromkeys(("algorithm", "outcome", "error", "end", "config_file", "python"))
        start = min((row.start for row in known.find(Filter())), default=None)
        run |= {"id": run_id, "start": start, "resumed": 0, "config": {}, "versions": {}}
        about: RunData = {"run": run, **dict.fromkeys(("metrics", "comparison", "usage", "budget")), "curve": []}
    else:
        about = _about_run(folder)
    versions = known.versions(None if folder is None else read_best(folder.best_file))
    return {**numbers, **about, "usage": about["usage"] or numbers["usage"], "format": FORMAT, "resources": versions}


def _about_run(folder: RunFolder) -> RunData:
    """Return what the folder of a run says: `run`, `metrics`, `comparison`, `usage`, `budget` and `curve`."""
    manifest = folder.manifest()
    result = manifest.result
    return {
        "run": {
            "id": folder.run_id,
            "algorithm": manifest.algorithm,
            "outcome": folder.standing(manifest) if manifest.end is None else manifest.outcome,
            "error": manifest.error,
            "start": manifest.start.timestamp(),
            "end": None if manifest.end is None else manifest.end.timestamp(),
            "resumed": len(manifest.resumed),
            "config_file": None if manifest.origin.config_file is None else Path(manifest.origin.config_file).name,
            "config": without_secrets("config", manifest.origin.config),
            "versions": {name: each for name, each in manifest.origin.versions.items() if "lightning" in name},
            "python": manifest.origin.python,
        },
        "metrics": None
        if result is None
        else {name: each if math.isfinite(each) else None for name, each in result.metrics.items()},
        "comparison": None if result is None or result.comparison is None else asdict(result.comparison),
        "usage": None if result is None else asdict(result.usage),
        "budget": None if result is None or result.budget is None else asdict(result.budget),
        "curve": [{"step": each.step, "metrics": each.metrics} for each in read_metrics(folder.metrics_file)],
    }


def _most_telling(known: Aggregates, best: int | None) -> list[Row]:
    """Sort rollouts by how much their traces tell; see `collect`."""
    rows = sorted(known.find(Filter()), key=lambda row: (row.start, row.rollout_id))
    changes: dict[int, float] = {}
    if best is not None:
        samples = {row.rollout_id: row.sample for row in rows}
        for each in compare_versions(known, 0, best, limit=len(rows))["samples"]:
            changes[samples[each["after_rollouts"][0]]] = abs(change(each["before"], each["after"]))
    rewarded = sorted((row for row in rows if row.reward is not None), key=lambda row: row.reward or 0.0)
    changed = sorted(
        (row for row in rows if row.sample in changes and known.version_of(row) in (0, best)),
        key=lambda row: -changes[row.sample],
    )
    failed = [row for row in rows if row.failure is not None]
    ends = [row for pair in zip(rewarded, reversed(rewarded), strict=True) for row in pair]
    chosen = [*failed[:50], *changed[:100], *ends, *rows]
    return list({row.rollout_id: row for row in chosen}.values())


def _within(known: Aggregates, rollouts: Sequence[Row]) -> tuple[list[dict[str, Any]], list[Any]]:
    """Return as many rows as fit, the oldest first, and their inputs; rows name these by their places."""
    places: dict[int, int] = {}
    inputs: list[Any] = []
    rows, characters = [], 0
    for row in rollouts:
        record = known.as_json(row)
        characters += len(json.dumps(record))
        if row.sample not in places:
            [text] = known.inputs([row.sample]).values()
            characters += len(json.dumps(text))
        if characters > MAX_ROW_CHARACTERS:
            break
        if row.sample not in places:
            places[row.sample] = len(inputs)
            inputs.append(text)
        rows.append({**record, "sample": places[row.sample]})
    rows.sort(key=lambda each: (each["start"], each["id"]))
    return rows, inputs


def _version_changes(known: Aggregates, best: int | None) -> dict[str, Any]:
    """Return pairs of versions by both numbers, as many as fit: each with its parent, the first and the best."""
    numbers = range(known.version_count)
    parents = [(0 if (parent := known.parent_of(number)) is None else parent, number) for number in numbers]
    changes: dict[str, Any] = {}
    characters = 0
    for before, after in dict.fromkeys([*parents, *product(sorted({0, best or 0}), numbers)]):
        if before == after:
            continue
        compared = compare_versions(known, before, after, limit=MAX_CHANGED)
        characters += len(json.dumps(compared))
        if characters > MAX_COMPARED_CHARACTERS:
            break
        changes[f"{before}-{after}"] = compared
    return changes
