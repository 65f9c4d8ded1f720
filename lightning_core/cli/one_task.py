"""One task, run as every other one is."""

from typing import Any

from lightning_core.algorithm import FastAlgorithm, RolloutOutcome, run_batch
from lightning_core.types import Dataset, RolloutMode


class OneTask(FastAlgorithm):
    """Runs the agent on one task with the initial resources, and keeps what came of it.

    Args:
        task: The task.
        mode: What the rollout is for.
    """

    outcome: RolloutOutcome | None = None
    """What came of it; None before it has ended."""

    def __init__(self, task: Any, *, mode: RolloutMode) -> None:
        self._task = task
        self._mode: RolloutMode = mode

    async def run(self, train_dataset: Dataset[Any] | None = None, val_dataset: Dataset[Any] | None = None) -> None:
        """Run it. The datasets are not looked at."""
        store, resources = self.get_store(), self.get_initial_resources()
        resources_id = None if resources is None else (await store.add_resources(resources)).resources_id
        batch = await run_batch(
            store, [self._task], mode=self._mode, resources_id=resources_id, config=self.get_rollout_config()
        )
        (self.outcome,) = batch.outcomes
