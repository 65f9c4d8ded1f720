"""Reads the rollouts of a run page by page, and takes them into `Aggregates`."""

from collections.abc import Collection, Sequence

from lightning_core.adapter.usage import Usage, usage_in
from lightning_core.emitter import find_final_reward
from lightning_core.rewards import final_reward_in
from lightning_core.store import LightningStore
from lightning_core.types import AttemptedRollout, Rollout
from lightning_viewer.aggregates import Aggregates

PAGE_SIZE = 1_000
"""How many rollouts are read at once."""


async def read_aggregates(store: LightningStore) -> Aggregates:
    """Read a run whole: its resources, and its rollouts page by page, so that few of them are held at once."""
    aggregates = Aggregates()
    aggregates.put_resources(await store.query_resources())
    offset = 0
    while found := await store.query_rollouts(limit=PAGE_SIZE, offset=offset):
        await _put(store, aggregates, found)
        offset += len(found)
    return aggregates


async def update_aggregates(store: LightningStore, aggregates: Aggregates, rollout_ids: Collection[str]) -> None:
    """Read the rollouts that have changed, and take them in as they are now; those that are gone are forgotten."""
    found = await store.query_rollouts(rollout_id_in=list(rollout_ids)) if rollout_ids else ()
    for rollout_id in {*rollout_ids} - {each.rollout_id for each in found}:
        aggregates.discard(rollout_id)
    if not all(aggregates.knows_resources(each.resources_id) for each in found):
        aggregates.put_resources(await store.query_resources())
    await _put(store, aggregates, found)


async def reward_of(store: LightningStore, rollout: Rollout) -> float | None:
    """Return the reward of a rollout; None where it gave none, or has not succeeded.

    Its attempt's metadata have it. Where they do not, as in a store of an earlier version, its spans are read.
    """
    if rollout.status != "succeeded" or not isinstance(rollout, AttemptedRollout):
        return None
    if (known := final_reward_in(rollout.attempt.metadata)) is not None:
        return known
    return find_final_reward(await store.query_spans(rollout.rollout_id, rollout.attempt.attempt_id))


async def _put(store: LightningStore, aggregates: Aggregates, rollouts: Sequence[Rollout]) -> None:
    for each in rollouts:
        aggregates.put(each, await reward_of(store, each), earlier=await _earlier_usage(store, each))


async def _earlier_usage(store: LightningStore, rollout: Rollout) -> Usage | None:
    if not isinstance(rollout, AttemptedRollout) or rollout.attempt.sequence_id < 2:
        return None
    attempts = await store.query_attempts(rollout.rollout_id)
    return sum((usage_in(each.metadata) for each in attempts[:-1]), Usage())
