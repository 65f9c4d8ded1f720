"""The algorithm itself. Replace what `run` does; the rest of the distribution stays as it is."""

from collections.abc import Sequence
from typing import Any

from lightning_core import Algorithm, Dataset, PromptTemplate
from lightning_core.algorithm import require_rewards, run_batch
from lightning_core.errors import AlgorithmError


class MyTuner(Algorithm):
    """Tries each sentence at the end of the prompt, and keeps the prompt with the highest mean reward.

    Args:
        sentences: What to try, one at a time, after the prompt as it is.
        resource: The name of the prompt among the initial resources.
    """

    def __init__(self, *, sentences: Sequence[str] = ("Think step by step.",), resource: str = "main_prompt") -> None:
        self.sentences = sentences
        self.resource = resource

    async def run(self, train_dataset: Dataset[Any] | None = None, val_dataset: Dataset[Any] | None = None) -> None:
        """Run the agent on all of `train_dataset` once for each prompt; `val_dataset` is not used.

        Raises:
            AlgorithmError: When there is no prompt to begin with, or no sample.
            NoRewards: When no rollout of a prompt gave a reward.
        """
        store, initial = self.get_store(), self.get_initial_resources() or {}
        prompt = initial.get(self.resource)
        if not isinstance(prompt, PromptTemplate) or train_dataset is None:
            raise AlgorithmError(f"mytuner needs a train_dataset, and a PromptTemplate {self.resource!r} to begin with")
        samples = [train_dataset[index] for index in range(len(train_dataset))]
        templates = [prompt.template, *(f"{prompt.template}\n{sentence}" for sentence in self.sentences)]
        best, best_reward = initial, float("-inf")
        for step, template in enumerate(templates, start=1):
            candidate = {**initial, self.resource: prompt.model_copy(update={"template": template})}
            # A run that goes on after a kill asks again under the same names, and gets what is there already.
            version = await store.add_resources(candidate, request_id=f"mytuner/prompt {step}")
            batch = await run_batch(
                store,
                samples,
                mode="train",
                resources_id=version.resources_id,
                config=self.get_rollout_config(),  # the limits that the user gave
                request_id=f"mytuner/batch {step}",
            )
            require_rewards([batch], step=f"prompt {step}")
            if batch.mean_reward is not None and batch.mean_reward > best_reward:
                best, best_reward = candidate, batch.mean_reward
            self.report({"train_reward": best_reward}, step=step, best_resources=best)
