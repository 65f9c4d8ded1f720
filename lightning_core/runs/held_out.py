"""How good the outcome of a run is on samples that its algorithm has not seen."""

import hashlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from lightning_core.algorithm import require_rewards, run_batch
from lightning_core.algorithm.continued import continued
from lightning_core.store import LightningStore
from lightning_core.store.requests import digest_of
from lightning_core.types import (
    Dataset,
    NamedResources,
    ProxyLLM,
    Resource,
    ResourcesUpdate,
    RolloutConfig,
    samples_of,
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
        latest = await _latest(store, key)
        initial_reward = None if initial is None else await measure(initial, key=key)
        if initial_reward is not None:
            report({"test_reward_initial": initial_reward})
        if best is not None and best == initial and initial_reward is not None:
            report({"test_reward": initial_reward})
        elif best is not None or initial is None:
            report({"test_reward": await measure(best, key=key)})
        if latest is not None:
            # A measurement changes nothing: what was the latest version is so again.
            await store.update_resources(latest.resources_id, latest.resources)


async def _mean_reward(
    store: LightningStore,
    samples: list[Any],
    config: RolloutConfig | None,
    resources: NamedResources | None,
    *,
    key: str,
) -> float:
    request_id = f"{key}/{_digest(resources)}"
    resources_id = None
    if resources is not None:
        added_by = f"{request_id}/resources/{digest_of(resources)}"
        resources_id = (await store.add_resources(resources, request_id=added_by)).resources_id
    batch = await run_batch(
        store, samples, mode="test", resources_id=resources_id, config=config, request_id=request_id
    )
    require_rewards([batch], step="the test on held-out samples")
    assert batch.mean_reward is not None
    return batch.mean_reward


async def _latest(store: LightningStore, key: str) -> ResourcesUpdate | None:
    """Return what was the latest version when the measurement began: before a kill, where it is continued."""
    state = await store.load_state("held out/latest")
    if isinstance(state, dict) and state["key"] == key:
        return None if state["id"] is None else await store.get_resources_by_id(state["id"])
    latest = await store.get_latest_resources()
    await store.save_state("held out/latest", {"key": key, "id": None if latest is None else latest.resources_id})
    return latest


def _without_address(resource: Resource) -> Resource:
    """Where a run's proxy is changes when the run is taken up again; what is behind it does not."""
    return resource.model_copy(update={"endpoint": ""}) if isinstance(resource, ProxyLLM) else resource


def _digest(resources: NamedResources | None) -> str:
    """Tell bundles apart in a few characters: a run that is continued may have found another best one."""
    if resources is None:
        return "as it is"
    text = "\n".join(f"{name} {_without_address(resources[name]).model_dump_json()}" for name in sorted(resources))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
