"""The algorithm that changes nothing: it measures."""

from typing import Any

from lightning_core.algorithm.base import Algorithm
from lightning_core.algorithm.batch import Batch, require_rewards, run_batch
from lightning_core.errors import AlgorithmError
from lightning_core.types import Dataset, RolloutMode


class Baseline(Algorithm):
    """Runs the agent once on every sample, with the initial resources, and reports the mean rewards.

    Args:
        n_epochs: How often to go over the datasets.
    """

    def __init__(self, *, n_epochs: int = 1) -> None:
        if n_epochs < 1:
            raise ValueError(f"n_epochs is {n_epochs}; it is at least 1")
        self.n_epochs = n_epochs

    async def run(self, train_dataset: Dataset[Any] | None = None, val_dataset: Dataset[Any] | None = None) -> None:
        """Measure the agent.

        Raises:
            AlgorithmError: When there is no sample.
            NoRewards: When no rollout of an epoch gave a reward.
        """
        store = self.get_store()
        given: dict[RolloutMode, Dataset[Any] | None] = {"train": train_dataset, "val": val_dataset}
        datasets = {mode: [data[i] for i in range(len(data))] for mode, data in given.items() if data is not None}
        if not any(datasets.values()):
            raise AlgorithmError("baseline has nothing to run; give a train_dataset or a val_dataset")
        resources = self.get_initial_resources()
        resources_id = None if resources is None else (await store.add_resources(resources)).resources_id
        for epoch in range(1, self.n_epochs + 1):
            batches: dict[RolloutMode, Batch] = {}
            for mode, samples in datasets.items():
                batches[mode] = await run_batch(store, samples, mode=mode, resources_id=resources_id)
            require_rewards(batches.values(), step=f"epoch {epoch}")
            means = {mode: batch.mean_reward for mode, batch in batches.items()}
            self.report(
                {f"{mode}_reward": mean for mode, mean in means.items() if mean is not None},
                step=epoch,
                best_resources=resources,
            )
