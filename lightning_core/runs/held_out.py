"""How good the outcome of a run is on samples that its algorithm has not seen."""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean
from typing import Any

from lightning_core.algorithm import require_rewards, run_batch
from lightning_core.algorithm.batch import continued, is_kept_back, reward_of, store_resources
from lightning_core.algorithm.estimates import Estimate, PairedDifference, estimate, paired_difference, without_interval
from lightning_core.algorithm.own_calls import is_of_algorithm
from lightning_core.store import LightningStore
from lightning_core.types import Dataset, NamedResources, Rollout, RolloutConfig, RolloutMode, sample_key, samples_of

logger = logging.getLogger(__name__)

MODES: tuple[RolloutMode | None, ...] = ("test", "val", "train", None)
"""What rollouts are for, what the algorithm learned least from first."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Mean rewards before and after, over samples of one kind.

    They have 95% intervals on `test` samples, on samples that the algorithm kept back, and where nothing has changed.
    Elsewhere the best was chosen on the very samples: its mean flatters it, and an interval would claim what is not
    there.

    A sample that was run several times with the same resources counts once, with its mean; one that failed each time
    is lost.
    """

    mode: RolloutMode | None
    """What the rollouts were for."""
    before: Estimate | None
    """Of the initial resources; None when they have no reward on such samples."""
    after: Estimate | None = None
    """Of the best; None when it is the same as the initial resources, is not known, or has no reward."""
    difference: PairedDifference | None = None
    """From the one to the other, over the samples that both were tried on."""
    kept_back: bool = False
    """Whether these are samples that the algorithm was given, and neither learned from nor chose by."""

    @property
    def is_chosen_on(self) -> bool:
        """Whether the best was chosen on these samples, as far as is known, so that there is no interval."""
        return self.after is not None and self.mode != "test" and not self.kept_back


async def compare(
    store: LightningStore,
    rollouts: Sequence[Rollout] | None = None,
    *,
    initial: NamedResources | None,
    best: NamedResources | None,
) -> Comparison | None:
    """Compare two bundles by the rollouts of a run, if possible on samples that chose nothing.

    Where nothing is known of resources, that is the agent as it is, over all rollouts.

    Args:
        store: Where the rollouts are.
        rollouts: All of the run, as the store has them; None to read them.
        initial: What the run started from.
        best: What the algorithm says is the best.

    Returns:
        What is known; None when no rollout with these resources gave a reward.
    """
    found = await store.query_rollouts() if rollouts is None else rollouts
    ended = [each for each in found if each.status in ("succeeded", "failed") and not is_of_algorithm(each)]
    versions = await store.query_resources() if initial is not None or best is not None else ()
    with_initial = {each.resources_id for each in versions if each.resources == initial}
    with_best = {each.resources_id for each in versions if each.resources == best}
    befores = ended if initial is None and best is None else _with(ended, with_initial)
    afters = [] if best == initial else _with(ended, with_best)
    for kind in _kinds_of_both_first(befores, afters):
        before = await _rewards(store, befores, kind)
        after = await _rewards(store, afters, kind)
        common = [sample for sample in before if sample in after]
        comparison = Comparison(
            kind[0],
            before=estimate(before.values()),
            after=estimate(after.values()),
            difference=paired_difference([before[each] for each in common], [after[each] for each in common]),
            kept_back=kind[1],
        )
        if comparison.before is not None or comparison.after is not None:
            return _without_intervals(comparison) if comparison.is_chosen_on else comparison
    return None


def _without_intervals(comparison: Comparison) -> Comparison:
    return replace(
        comparison,
        before=without_interval(comparison.before),
        after=without_interval(comparison.after),
        difference=without_interval(comparison.difference),
    )


def _with(rollouts: Sequence[Rollout], resources_ids: Collection[str]) -> list[Rollout]:
    return [rollout for rollout in rollouts if rollout.resources_id in resources_ids]


_Kind = tuple[RolloutMode | None, bool]
"""What rollouts are for, and whether their samples were kept back."""


def _kind_of(rollout: Rollout) -> _Kind:
    return rollout.mode, is_kept_back(rollout)


def _kinds_of_both_first(befores: Sequence[Rollout], afters: Sequence[Rollout]) -> list[_Kind]:
    before, after = set(map(_kind_of, befores)), set(map(_kind_of, afters))
    kinds: list[_Kind] = [(mode, kept_back) for mode in MODES for kept_back in (True, False)]
    found = [kind for kind in kinds if kind in before or kind in after]
    return sorted(found, key=lambda kind: (not (kind in before and kind in after), kind not in after))


async def _rewards(store: LightningStore, rollouts: Sequence[Rollout], kind: _Kind) -> dict[str, float | None]:
    """Return the mean reward of each sample of a kind; None of one that never gave any."""
    rewards: dict[str, list[float]] = {}
    for rollout in rollouts:
        if _kind_of(rollout) != kind:
            continue
        given = rewards.setdefault(sample_key(rollout.input), [])
        reward = await reward_of(store, rollout)
        given += [] if reward is None else [reward]
    return {sample: fmean(given) if given else None for sample, given in rewards.items()}


def warn_of_overlap(test_dataset: Dataset[Any] | None, others: Mapping[str, Dataset[Any] | None]) -> None:
    """Warn of held-out samples that the algorithm is given, too: what it says of them flatters it.

    Only lists and tuples are looked into: to read another dataset may take long.

    Args:
        test_dataset: The held-out samples.
        others: By name, what the algorithm is given.
    """
    if not isinstance(test_dataset, list | tuple):
        return
    held_out = {sample_key(sample) for sample in test_dataset}
    for name, dataset in others.items():
        if not isinstance(dataset, list | tuple):
            continue
        both = held_out & {sample_key(sample) for sample in samples_of(dataset)}
        if both:
            logger.warning(
                "lightning.test_dataset_overlaps dataset=%s shared=%d of=%d: the algorithm is given held-out samples, "
                "too; the result on them flatters it",
                name,
                len(both),
                len(held_out),
            )


async def measure_held_out(
    store: LightningStore,
    dataset: Dataset[Any],
    *,
    initial: NamedResources | None,
    best: NamedResources | None,
    report: Callable[[Mapping[str, float]], None],
    config: RolloutConfig | None = None,
) -> None:
    """Run the agent on held-out samples, and report the mean rewards.

    One that was killed is continued by the next one in the same run of the store, over as many samples: what has ended
    is not run again.

    Args:
        store: Where runners look for work.
        dataset: The held-out samples.
        initial: What the algorithm started from; its reward is reported as `test_reward_initial`.
        best: What it found; reported as `test_reward`. Where there is neither, that is the agent's with the latest
            resources, or with none.
        report: Takes each metric as soon as it is known.
        config: Limits and retry policy of the rollouts.

    Raises:
        NoRewards: When no rollout of a measurement gave a reward.
    """
    samples = samples_of(dataset)
    measure = partial(_mean_reward, store, samples, config)
    async with continued(store, "held out", of=len(samples)) as key:
        initial_reward = None if initial is None else await measure(initial, key=key)
        if initial_reward is not None:
            report({"test_reward_initial": initial_reward})
        if best is not None and best == initial and initial_reward is not None:
            report({"test_reward": initial_reward})
        elif best is not None or initial is None:
            report({"test_reward": await measure(best, key=key)})


async def _mean_reward(
    store: LightningStore,
    samples: list[Any],
    config: RolloutConfig | None,
    resources: NamedResources | None,
    *,
    key: str,
) -> float:
    versions = () if resources is None else await store.query_resources()
    known = [each.resources_id for each in versions if each.resources == resources]
    latest = await store.get_latest_resources()
    resources_id = known[0] if known else await store_resources(store, resources, key=key)
    if not known and resources is not None and latest is not None:
        # A measurement changes nothing: what was the latest version is so again.
        await store.update_resources(latest.resources_id, latest.resources)
    batch = await run_batch(
        store, samples, mode="test", resources_id=resources_id, config=config, request_id=f"{key}/{resources_id}"
    )
    require_rewards([batch], step="the test on held-out samples")
    assert batch.mean_reward is not None
    return batch.mean_reward
