"""Prompts tried out: the store's side of the search."""

from collections.abc import Iterable

from lightning_apo.candidate import Candidate
from lightning_core.algorithm import Batch, run_batch
from lightning_core.store import LightningStore
from lightning_core.types import Dataset, NamedResources, PromptTemplate, RolloutConfig, RolloutMode, TaskInput


class Trials:
    """Runs the agent with one prompt or another, everything else in the resources being the same.

    Args:
        store: Where runners look for work.
        resources: The bundle that the prompts are part of.
        prompt_name: The prompt's name in the bundle.
        timeout_seconds: The longest wait for the rollouts of one call of `run`. What has not ended is lost.
        config: Limits and retry policy of the rollouts; None for the defaults.
    """

    def __init__(
        self,
        store: LightningStore,
        resources: NamedResources,
        *,
        prompt_name: str,
        timeout_seconds: float,
        config: RolloutConfig | None = None,
    ) -> None:
        self._store = store
        self._resources = resources
        self._prompt_name = prompt_name
        self._timeout_seconds = timeout_seconds
        self._config = config
        self.lost = 0
        """How many rollouts gave no reward so far."""

    async def enter(self, prompt: PromptTemplate, *, number: int) -> Candidate:
        """Put a prompt into the store, as a new version of the resources."""
        resources: NamedResources = {**self._resources, self._prompt_name: prompt}
        added = await self._store.add_resources(resources)
        return Candidate(number=number, prompt=prompt, resources=resources, resources_id=added.resources_id)

    async def publish(self, candidate: Candidate) -> None:
        """Make a candidate the latest resources, which a rollout uses that names none."""
        await self._store.update_resources(candidate.resources_id, candidate.resources)

    async def run(
        self, candidate: Candidate, dataset: Dataset[TaskInput], samples: Iterable[int], *, mode: RolloutMode
    ) -> Batch:
        """Run the agent with a candidate, once on each of these samples."""
        batch = await run_batch(
            self._store,
            [dataset[sample] for sample in samples],
            mode=mode,
            resources_id=candidate.resources_id,
            timeout_seconds=self._timeout_seconds,
            config=self._config,
        )
        self.lost += batch.lost
        return batch
