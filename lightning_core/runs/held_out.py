"""How good the outcome of a run is on samples that its algorithm has not seen."""

from collections.abc import Callable, Mapping
from typing import Any

from lightning_core.algorithm import require_rewards, run_batch
from lightning_core.store import LightningStore
from lightning_core.types import Dataset, NamedResources, RolloutConfig


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
    latest = await store.get_latest_resources()
    initial_reward = None if initial is None else await _mean_reward(store, dataset, initial, config)
    if initial_reward is not None:
        report({"test_reward_initial": initial_reward})
    if best is not None and best == initial and initial_reward is not None:
        report({"test_reward": initial_reward})
    elif best is not None or initial is None:
        report({"test_reward": await _mean_reward(store, dataset, best, config)})
    if latest is not None:
        # A measurement changes nothing: what was the latest version is so again.
        await store.update_resources(latest.resources_id, latest.resources)


async def _mean_reward(
    store: LightningStore, dataset: Dataset[Any], resources: NamedResources | None, config: RolloutConfig | None
) -> float:
    resources_id = None if resources is None else (await store.add_resources(resources)).resources_id
    samples = [dataset[index] for index in range(len(dataset))]
    batch = await run_batch(store, samples, mode="test", resources_id=resources_id, config=config)
    require_rewards([batch], step="the test on held-out samples")
    assert batch.mean_reward is not None
    return batch.mean_reward
