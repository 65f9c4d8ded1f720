"""Before and after: how good the resources are that a run found, and those that it started from."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from statistics import fmean

from lightning_core.algorithm.estimates import Estimate, PairedDifference, estimate, paired_difference
from lightning_core.algorithm.own_calls import is_of_algorithm
from lightning_core.emitter import find_final_reward
from lightning_core.store import LightningStore
from lightning_core.types import NamedResources, Rollout, RolloutMode, sample_key

MODES: tuple[RolloutMode | None, ...] = ("test", "val", "train", None)
"""What rollouts are for, what the algorithm learned least from first."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Mean rewards before and after, with 95% intervals, over samples of one kind.

    A sample that was run several times with the same resources counts once, with its mean; one that failed each time
    is lost.
    """

    mode: RolloutMode | None
    """What the rollouts were for. On `val` samples the best was probably chosen, so that its reward flatters it."""
    before: Estimate | None
    """Of the initial resources; None when they have no reward on such samples."""
    after: Estimate | None = None
    """Of the best; None when it is the same as the initial resources, is not known, or has no reward."""
    difference: PairedDifference | None = None
    """From the one to the other, over the samples that both were tried on."""


async def compare(
    store: LightningStore, *, initial: NamedResources | None, best: NamedResources | None
) -> Comparison | None:
    """Compare two bundles by the rollouts of a run, on the held-out samples if both were tried there.

    Where nothing is known of resources, that is the agent as it is, over all rollouts.

    Args:
        store: Where the rollouts are.
        initial: What the run started from.
        best: What the algorithm says is the best.

    Returns:
        What is known; None when no rollout with these resources gave a reward.
    """
    found = await store.query_rollouts(status_in=["succeeded", "failed"])
    ended = [rollout for rollout in found if not is_of_algorithm(rollout)]
    versions = await store.query_resources() if initial is not None or best is not None else ()
    with_initial = {each.resources_id for each in versions if each.resources == initial}
    with_best = {each.resources_id for each in versions if each.resources == best}
    befores = ended if initial is None and best is None else _with(ended, with_initial)
    afters = [] if best == initial else _with(ended, with_best)
    for mode in _modes_of_both_first(befores, afters):
        before = await _rewards(store, befores, mode)
        after = await _rewards(store, afters, mode)
        common = [sample for sample in before if sample in after]
        comparison = Comparison(
            mode,
            before=estimate(before.values()),
            after=estimate(after.values()),
            difference=paired_difference([before[each] for each in common], [after[each] for each in common]),
        )
        if comparison.before is not None or comparison.after is not None:
            return comparison
    return None


def _with(rollouts: Sequence[Rollout], resources_ids: Collection[str]) -> list[Rollout]:
    return [rollout for rollout in rollouts if rollout.resources_id in resources_ids]


def _modes_of_both_first(befores: Sequence[Rollout], afters: Sequence[Rollout]) -> list[RolloutMode | None]:
    before, after = {each.mode for each in befores}, {each.mode for each in afters}
    return sorted(MODES, key=lambda mode: (not (mode in before and mode in after), mode not in after))


async def _rewards(
    store: LightningStore, rollouts: Sequence[Rollout], mode: RolloutMode | None
) -> dict[str, float | None]:
    """Return the mean reward of each sample that was run in a mode; None of one that never gave any."""
    rewards: dict[str, list[float]] = {}
    for rollout in rollouts:
        if rollout.mode != mode:
            continue
        given = rewards.setdefault(sample_key(rollout.input), [])
        if rollout.status == "succeeded":
            reward = find_final_reward(await store.query_spans(rollout.rollout_id, "latest"))
            given += [] if reward is None else [reward]
    return {sample: fmean(given) if given else None for sample, given in rewards.items()}
