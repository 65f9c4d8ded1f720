"""The algorithm that changes nothing: it measures."""

from dataclasses import dataclass
from typing import Any

from lightning_core.algorithm.base import FastAlgorithm
from lightning_core.algorithm.batch import Batch, continued, require_rewards, run_batch, store_resources
from lightning_core.deprecated import deprecated
from lightning_core.errors import InvalidInput
from lightning_core.store import LightningStore
from lightning_core.types import Dataset, RolloutMode, samples_of

_SAMPLES: dict[RolloutMode, str] = {"train": "training", "val": "validation"}


@dataclass(frozen=True, slots=True)
class Plan:
    """The most that a measurement does."""

    rollouts: int

    def __str__(self) -> str:
        return f"at most {self.rollouts:,} rollouts"


class Baseline(FastAlgorithm):
    """Runs the agent once on every sample, with the initial resources, and reports the mean rewards.

    A measurement that was killed is continued by the next one in the same run of the store, over datasets of the same
    sizes: what has ended is not run again.

    Args:
        n_epochs: How often to go over the datasets.
    """

    @deprecated(
        without_effect={
            "train_split": "each dataset is run as a whole",
            "polling_interval": "waits are notified",
            "max_queue_length": "all samples are queued at once",
            "span_verbosity": "spans are not logged, read them with store.query_spans",
        }
    )
    def __init__(self, *, n_epochs: int = 1) -> None:
        if type(n_epochs) is not int or n_epochs < 1:
            raise ValueError(f"n_epochs is {n_epochs!r}; it is a whole number from 1 on")
        self.n_epochs = n_epochs

    def plan(self, train_dataset: Dataset[Any] | None = None, val_dataset: Dataset[Any] | None = None) -> Plan:
        """Say how many rollouts a run on these datasets has."""
        return Plan(self.n_epochs * sum(len(data) for data in (train_dataset, val_dataset) if data is not None))

    async def run(self, train_dataset: Dataset[Any] | None = None, val_dataset: Dataset[Any] | None = None) -> None:
        """Measure the agent.

        Raises:
            InvalidInput: When there is no sample.
            NoRewards: When no rollout of one of the datasets gave a reward in an epoch.
        """
        store = self.get_store()
        given: dict[RolloutMode, Dataset[Any] | None] = {"train": train_dataset, "val": val_dataset}
        datasets = {mode: samples_of(data) for mode, data in given.items() if data is not None}
        if not any(datasets.values()):
            raise InvalidInput("baseline has nothing to run; give a train_dataset or a val_dataset")
        sizes = {mode: len(samples) for mode, samples in datasets.items()}
        async with continued(store, "baseline", of=sizes) as key:
            await self._measure(store, datasets, key=key)

    async def _measure(self, store: LightningStore, datasets: dict[RolloutMode, list[Any]], *, key: str) -> None:
        resources = self.get_initial_resources()
        resources_id = await store_resources(store, resources, key=key)
        for epoch in range(1, self.n_epochs + 1):
            batches: dict[RolloutMode, Batch] = {}
            for mode, samples in datasets.items():
                batches[mode] = await run_batch(
                    store,
                    samples,
                    mode=mode,
                    resources_id=resources_id,
                    config=self.get_rollout_config(),
                    request_id=f"{key}/{epoch}/{mode}",
                )
            require_rewards(batches.values(), step=f"epoch {epoch}")
            means = {mode: batch.mean_reward for mode, batch in batches.items()}
            self.report(
                {f"{mode}_reward": mean for mode, mean in means.items() if mean is not None},
                step=epoch,
                best_resources=resources,
            )
            for mode, batch in batches.items():
                if batch.outcomes:
                    require_rewards([batch], step=f"epoch {epoch}, {_SAMPLES[mode]} samples")
