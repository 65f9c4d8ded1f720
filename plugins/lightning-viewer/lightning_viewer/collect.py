"""What is known of a run, as JSON: the report embeds it, and the terminal prints from it."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lightning_core.adapter.usage import usage_in
from lightning_core.algorithm import describe_failure
from lightning_core.algorithm.estimates import estimate
from lightning_core.algorithm.own_calls import is_of_algorithm
from lightning_core.emitter import find_final_reward
from lightning_core.runs.folder import RunFolder
from lightning_core.runs.metrics import read_metrics
from lightning_core.runs.recording import read_best
from lightning_core.runs.result import count_rollouts
from lightning_core.store import LightningStore
from lightning_core.types import AttemptedRollout, NamedResources, PromptTemplate, ResourcesUpdate, Rollout, sample_key
from lightning_viewer.traces import read_trace

FORMAT = 1
"""The version of the format that `collect` returns."""

MAX_TRACES = 200
"""How many traces a report holds, unless told otherwise."""

MAX_TRACE_CHARACTERS = 12_000_000
"""How much text all traces of a report hold together, so that the file stays below 20 MB."""

RunData = dict[str, Any]
"""What `collect` returns: JSON values."""


@dataclass(frozen=True, slots=True)
class RewardedRollout:
    """A rollout and its reward, None where it gave none."""

    rollout: Rollout
    reward: float | None


async def collect(folder: RunFolder, store: LightningStore, *, max_traces: int = MAX_TRACES) -> RunData:
    """Read a run.

    Args:
        folder: The folder of the run.
        store: Where its rollouts and spans are.
        max_traces: How many traces to include. Failed rollouts come first, then those whose sample changed most from
            the first resources to the best, then the worst, then the best.

    Returns:
        JSON values, without secrets: `run`, `curve`, `rollouts`, `inputs`, `resources`, `traces`, `left_out`, ...

    Raises:
        RunFolderError: When a file of the run is damaged.
    """
    ended = await rewarded(store)
    versions = distinct_versions(await store.query_resources(sort_by="create_time"))
    inputs: dict[str, int] = {}
    texts: list[Any] = []
    rows = []
    for each in ended:
        key = sample_key(each.rollout.input)
        if key not in inputs:
            inputs[key] = len(texts)
            texts.append(each.rollout.input)
        rows.append(row_of(each, sample=inputs[key], resources=versions.numbers.get(each.rollout.resources_id or "")))
    best_number = versions.number_of(read_best(folder.best_file))
    traces, characters = {}, 0
    for row in _most_telling(rows, best_number)[:max_traces]:
        trace = await read_trace(store, row["id"])
        if characters + trace["characters"] <= MAX_TRACE_CHARACTERS:
            characters += trace["characters"]
            traces[row["id"]] = trace
    counts, failures = await count_rollouts(store)
    return {
        "format": FORMAT,
        **about_run(folder),
        "counts": asdict(counts),
        "failures": [asdict(each) for each in failures],
        "rollouts": rows,
        "inputs": texts,
        "resources": about_versions(versions, rows, best_number),
        "traces": traces,
        "left_out": {"traces": len(rows) - len(traces)},
    }


def about_run(folder: RunFolder) -> RunData:
    """Return what the folder of a run says: `run`, `metrics`, `comparison`, `usage`, `budget` and `curve`.

    Raises:
        RunFolderError: When a file of the run is damaged.
    """
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
            "config": manifest.origin.config,
            "versions": {name: each for name, each in manifest.origin.versions.items() if "lightning" in name},
            "python": manifest.origin.python,
        },
        "metrics": None if result is None else result.metrics,
        "comparison": None if result is None or result.comparison is None else asdict(result.comparison),
        "usage": None if result is None else asdict(result.usage),
        "budget": None if result is None or result.budget is None else asdict(result.budget),
        "curve": [{"step": each.step, "metrics": each.metrics} for each in read_metrics(folder.metrics_file)],
    }


@dataclass(frozen=True, slots=True)
class Versions:
    """The different resources of a run: the same prompt may be added again, as for the held-out samples."""

    distinct: list[ResourcesUpdate]
    numbers: dict[str, int]
    """By the id of each version, its place in `distinct`."""

    def number_of(self, resources: NamedResources | None) -> int | None:
        """Return the place of these resources; None where the run has none such."""
        return next((number for number, each in enumerate(self.distinct) if each.resources == resources), None)


def distinct_versions(updates: Sequence[ResourcesUpdate]) -> Versions:
    """Put equal versions together, the first of them in its place."""
    found = Versions([], {})
    for update in updates:
        same = found.number_of(update.resources)
        if same is None:
            same = len(found.distinct)
            found.distinct.append(update)
        found.numbers[update.resources_id] = same
    return found


def about_versions(versions: Versions, rows: Sequence[Mapping[str, Any]], best: int | None) -> list[dict[str, Any]]:
    """Return what people read of each version, with the rewards of its rollouts."""
    return [
        {
            "id": each.resources_id,
            "created": each.create_time,
            "texts": _texts(each.resources),
            "is_best": number == best,
            "rewards": _rewards(rows, number),
        }
        for number, each in enumerate(versions.distinct)
    ]


async def rewarded(store: LightningStore) -> list[RewardedRollout]:
    """Return the rollouts of a run with their rewards, the oldest first, without those of the algorithm's own calls."""
    found = await store.query_rollouts(sort_by="start_time")
    return [RewardedRollout(each, await reward_of(store, each)) for each in found if not is_of_algorithm(each)]


async def reward_of(store: LightningStore, rollout: Rollout) -> float | None:
    """Return the reward of a rollout: as its attempt's metadata have it, else as its spans do."""
    if rollout.status != "succeeded" or not isinstance(rollout, AttemptedRollout):
        return None
    known = (rollout.attempt.metadata or {}).get("reward")
    if isinstance(known, int | float):
        return float(known)
    return find_final_reward(await store.query_spans(rollout.rollout_id, rollout.attempt.attempt_id))


def row_of(ended: RewardedRollout, *, sample: int, resources: int | None) -> dict[str, Any]:
    """Return a rollout as the client has it; `sample` and `resources` are the places of its input and version."""
    rollout = ended.rollout
    attempt = rollout.attempt if isinstance(rollout, AttemptedRollout) else None
    usage = usage_in(None if attempt is None else attempt.metadata)
    has_no_reward = rollout.status == "failed" or (rollout.status == "succeeded" and ended.reward is None)
    return {
        "id": rollout.rollout_id,
        "sample": sample,
        "mode": rollout.mode,
        "resources": resources,
        "status": rollout.status,
        "reward": ended.reward,
        "start": rollout.start_time,
        "seconds": None if rollout.end_time is None else rollout.end_time - rollout.start_time,
        "attempts": 0 if attempt is None else attempt.sequence_id,
        "calls": usage.calls,
        "failure": describe_failure(rollout) if has_no_reward else None,
    }


def _texts(resources: NamedResources) -> dict[str, str]:
    """Return what people read of each resource: a prompt's text, or a model's name."""
    return {
        name: each.template if isinstance(each, PromptTemplate) else str(getattr(each, "model", type(each).__name__))
        for name, each in resources.items()
    }


def _rewards(rows: Sequence[Mapping[str, Any]], resources: int) -> list[dict[str, Any]]:
    """Return the mean reward with its interval for each kind of samples that a version was tried on."""
    by_mode: dict[str | None, dict[int, list[float]]] = {}
    lost: dict[str | None, set[int]] = {}
    for row in rows:
        if row["resources"] != resources:
            continue
        if row["reward"] is None:
            lost.setdefault(row["mode"], set()).add(row["sample"])
        else:
            by_mode.setdefault(row["mode"], {}).setdefault(row["sample"], []).append(row["reward"])
    found = []
    for mode, samples in by_mode.items():
        means = [sum(each) / len(each) for each in samples.values()]
        measured = estimate([*means, *[None] * len(lost.get(mode, set()) - samples.keys())])
        if measured is not None:
            found.append({"mode": mode, **asdict(measured)})
    return found


def _most_telling(rows: Sequence[dict[str, Any]], best: int | None) -> list[dict[str, Any]]:
    """Sort rollouts by how much their traces tell; see `collect`."""
    changes: dict[int, float] = {}
    if best is not None:
        before, after = _means(rows, 0), _means(rows, best)
        changes = {sample: abs(after[sample] - before[sample]) for sample in before.keys() & after.keys()}
    rewarded = sorted((row for row in rows if row["reward"] is not None), key=lambda row: row["reward"])
    changed = sorted(
        (row for row in rows if row["resources"] in (0, best) and changes.get(row["sample"])),
        key=lambda row: -changes[row["sample"]],
    )
    failed = [row for row in rows if row["failure"] is not None]
    ends = [row for pair in zip(rewarded, reversed(rewarded), strict=True) for row in pair]
    chosen = [*failed[:50], *changed[:100], *ends, *rows]
    return list({row["id"]: row for row in chosen}.values())


def _means(rows: Sequence[Mapping[str, Any]], resources: int) -> dict[int, float]:
    """Return the mean reward by sample with one version of the resources."""
    rewards: dict[int, list[float]] = {}
    for row in rows:
        if row["resources"] == resources and row["reward"] is not None:
            rewards.setdefault(row["sample"], []).append(row["reward"])
    return {sample: sum(each) / len(each) for sample, each in rewards.items()}
