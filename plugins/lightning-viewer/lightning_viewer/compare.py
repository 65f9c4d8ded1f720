"""Two runs, or two versions of the resources of one, sample by sample."""

import math
from dataclasses import asdict, dataclass
from typing import Any

from lightning_core.algorithm.estimates import Measured, estimate, paired_difference, without_interval
from lightning_core.errors import NotFound
from lightning_core.runs.folder import RunFolder
from lightning_core.runs.held_out import MODES
from lightning_core.runs.recording import read_best
from lightning_core.store import LightningStore
from lightning_core.types import NamedResources, RolloutMode
from lightning_viewer.aggregates import Aggregates, Filter, Row, mean_of
from lightning_viewer.reading import read_aggregates


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two that are compared: a run with one version of its resources."""

    run_id: str
    known: Aggregates
    """What is known of the run."""
    version: int | None
    """The version, counted from 1; None where the run has none."""
    is_best: bool
    """Whether its algorithm named this version as the best."""

    @property
    def label(self) -> str:
        """The run and its version, as `agl compare` takes them."""
        return self.run_id if self.version is None else f"{self.run_id}:v{self.version}"

    def record(self) -> dict[str, Any]:
        """Return what it is, as `compare` has it."""
        return {"label": self.label, "run": self.run_id, "version": self.version, "is_best": self.is_best}


async def read_side(folder: RunFolder, store: LightningStore, version: str | None = None) -> Side:
    """Read a run, and choose a version of its resources; see `side_of`."""
    return side_of(await read_aggregates(store), folder.run_id, version, best=read_best(folder.best_file))


def side_of(known: Aggregates, run_id: str, version: str | None = None, *, best: NamedResources | None = None) -> Side:
    """Choose a version of the resources of a run.

    Args:
        known: What is known of the run.
        run_id: The run's id.
        version: `first`, `best` or `v2`. None for the best version; where the run names none, or has not tried it, for
            the newest one that was tried.
        best: The best resources of the run, where it names any.

    Raises:
        NotFound: When the run has no such version.
    """
    best_number = known.number_of(best)
    if version is None:
        tried = [known.version_of(row) for row in sorted(known.find(Filter()), key=lambda row: row.start)]
        number = best_number if best_number in tried else next(reversed(tried), None)
    elif version == "first" and known.version_count:
        number = 0
    elif version == "best" and best_number is not None:
        number = best_number
    elif version.startswith("v") and version[1:].isdecimal() and 1 <= int(version[1:]) <= known.version_count:
        number = int(version[1:]) - 1
    else:
        count = known.version_count
        has = "has no resources" if count == 0 else f"has v1 to v{count}, first and, where it names one, best"
        raise NotFound(f"run {run_id} has no version of its resources that {version!r} names; it {has}")
    is_best = number is not None and number == best_number
    return Side(run_id, known, None if number is None else number + 1, is_best)


def compare(before: Side, after: Side) -> dict[str, Any]:
    """Compare two sides on the samples that both were tried on.

    A sample that was run several times counts once, with its mean. The samples are of one kind: held-out ones where
    both sides have some in common, else validation ones, else those of training; of each kind those alone that the
    algorithm kept back, where it did. There are no intervals on samples by which a side may have been chosen: those of
    all but the first version of a run's resources.

    Returns:
        JSON values:

        - `before`, `after`: `label`, `run`, `version` (from 1), `is_best`, and `estimate`, the mean reward over all
          samples of this kind with its interval, None where there is none
        - `mode`: the kind of samples; `kept_back`: whether the algorithm kept them back; `is_chosen_on`: whether there
          are no intervals, as a side may have been chosen by them
        - `difference`: the paired difference with its interval, None where no sample has a reward on both sides
        - `better`, `worse`, `same`: how many samples changed how, of those with a reward on at least one side: one
          that fails now is worse, though it is in no pair
        - `unpaired`: how many have no reward on one side or both
        - `samples`: each sample that both were tried on, the greatest loss first, and to fail is the greatest: its
          `input`, cut short where it is long, the means `before` and `after` (None where each rollout failed), their
          `difference`, and the rollouts' ids of both sides, `before_rollouts` and `after_rollouts`
    """
    measured, old, new = common_samples(before, after)
    inputs = before.known.inputs(old[key][0].sample for key in old.keys() & new.keys())
    samples = []
    for key in old.keys() & new.keys():
        was, now = mean_of(old[key]), mean_of(new[key])
        samples.append(
            {
                "input": inputs[old[key][0].sample],
                "before": was,
                "after": now,
                "difference": None if was is None or now is None else now - was,
                "before_rollouts": [each.rollout_id for each in old[key]],
                "after_rollouts": [each.rollout_id for each in new[key]],
            }
        )
    samples.sort(key=lambda each: (each["before"] is each["after"] is None, _change(each), str(each["input"])))
    changes = [_change(each) for each in samples if each["before"] is not None or each["after"] is not None]
    paired = sum(each["difference"] is not None for each in samples)
    return {
        **measured,
        "before": {**before.record(), "estimate": measured["before"]},
        "after": {**after.record(), "estimate": measured["after"]},
        "better": sum(each > 0 for each in changes),
        "worse": sum(each < 0 for each in changes),
        "same": sum(each == 0 for each in changes),
        "unpaired": len(old.keys() | new.keys()) - paired,
        "samples": samples,
    }


MAX_CHANGED = 200
"""How many samples a page shows of a comparison."""


def compare_versions(known: Aggregates, before: int, after: int, *, limit: int = MAX_CHANGED) -> dict[str, Any]:
    """Compare two versions of a run by their numbers; return what changed most, as `most_changed` does."""
    return most_changed(compare(*(Side("", known, number + 1, False) for number in (before, after))), limit=limit)


def change(before: float | None, after: float | None) -> float:
    """Return how much better a sample got. To fail now is the greatest loss, and to fail no more the greatest gain."""
    if before is None:
        return 0.0 if after is None else math.inf
    return -math.inf if after is None else after - before


def most_changed(found: dict[str, Any], *, limit: int = MAX_CHANGED) -> dict[str, Any]:
    """Return what `compare` did, as a page shows it: of the samples those that changed, and `changed`, how many.

    Args:
        found: What `compare` returned.
        limit: How many samples to keep, those that lost and gained most.
    """
    changed = [each for each in found["samples"] if _change(each)]
    kept = sorted(changed, key=lambda each: -abs(_change(each)))[:limit]
    return {**found, "changed": len(changed), "samples": sorted(kept, key=_change)}


def _change(sample: dict[str, Any]) -> float:
    return change(sample["before"], sample["after"])


def common_samples(before: Side, after: Side) -> tuple[dict[str, Any], dict[bytes, list[Row]], dict[bytes, list[Row]]]:
    """Find the kind of samples that tells most of two sides, as `compare` says.

    Returns:
        `mode`, `kept_back`, `is_chosen_on` and `difference`, as `compare` has them, and `before` and `after`, the mean
        rewards; and the rollouts of each side by sample.
    """
    for mode, wants_kept in [(mode, kept) for mode in MODES for kept in (True, False)]:
        (old, *was), (new, *now) = (_by_sample(side, mode, wants_kept=wants_kept) for side in (before, after))
        if old.keys() & new.keys():
            break
    is_chosen_on = mode != "test" and any(is_chosen and not kept for kept, is_chosen in (was, now))

    def record(measured: Measured | None) -> dict[str, Any] | None:
        shown = without_interval(measured) if is_chosen_on else measured
        return None if shown is None else asdict(shown)

    pairs = [(mean_of(old[key]), mean_of(new[key])) for key in old.keys() & new.keys()]
    measured = {
        "mode": mode,
        "kept_back": any(kept for kept, _ in (was, now)),
        "is_chosen_on": is_chosen_on,
        "before": record(estimate(map(mean_of, old.values()))),
        "after": record(estimate(map(mean_of, new.values()))),
        "difference": record(paired_difference([old for old, _ in pairs], [new for _, new in pairs])),
    }
    return measured, old, new


def _by_sample(side: Side, mode: RolloutMode | None, *, wants_kept: bool) -> tuple[dict[bytes, list[Row]], bool, bool]:
    """Return rollouts by sample, whether they are those alone that were kept back, and whether the side was chosen."""
    keys, version = side.known.sample_keys(), None if side.version is None else side.version - 1
    samples = {keys[sample]: rows for sample, rows in side.known.by_sample(version, mode or "other").items()}
    kept = {key: rows for key, each in samples.items() if (rows := [row for row in each if row.kept_back])}
    is_kept = wants_kept and bool(kept)
    return kept if is_kept else samples, is_kept, (side.version or 1) > 1
