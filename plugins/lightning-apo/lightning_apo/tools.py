"""What a search works with."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lightning_apo.candidate import Candidate, Texts
from lightning_apo.inputs import digest
from lightning_apo.messages import ShownPrompt
from lightning_apo.models import Answer
from lightning_apo.saved import SavedSearch
from lightning_core.adapter import TraceToMessages
from lightning_core.algorithm import Batch, run_batch
from lightning_core.store import LightningStore
from lightning_core.types import Dataset, NamedResources, PromptTemplate, RolloutConfig, RolloutMode, TaskInput

HELD = "held"
"""The step of a search that runs prompts on the samples that no race sees."""


class Trials:
    """Runs the agent with one prompt or another, everything else in the resources being the same.

    What it does is named, by the search and by what it is for. So a search that goes on after a kill asks again for
    what it had asked for, and gets what has ended at once.

    Args:
        store: Where runners look for work.
        resources: The bundle that the prompts are part of.
        search_key: Names the search within its run.
        timeout_seconds: The longest wait for the rollouts of one call of `run`, None for no limit. What has not ended
            is lost.
        config: Limits and retry policy of the rollouts; None for the defaults.
    """

    def __init__(
        self,
        store: LightningStore,
        resources: NamedResources,
        *,
        search_key: str,
        timeout_seconds: float | None,
        config: RolloutConfig | None = None,
    ) -> None:
        self._store = store
        self._resources = resources
        self._search_key = search_key
        self._timeout_seconds = timeout_seconds
        self._config = config
        self.lost = 0
        """How many rollouts gave no reward so far."""
        self.asked = 0
        """How many rollouts there were so far."""

    def bundle(self, texts: Texts) -> NamedResources:
        """Return the resources with these prompts in place of those they began with."""
        changed: NamedResources = {}
        for name, text in texts.items():
            prompt = self._resources[name]
            assert isinstance(prompt, PromptTemplate)
            changed[name] = prompt.model_copy(update={"template": text})
        return {**self._resources, **changed}

    async def enter(self, texts: Texts, parent: Candidate | None = None) -> Candidate:
        """Put prompts into the store, as a new version of the resources that was made from the parent's."""
        parent_id = None if parent is None else parent.resources_id
        name = self._name("resources", texts)
        added = await self._store.add_resources(self.bundle(texts), parent_id=parent_id, request_id=name)
        return Candidate(texts=texts, resources_id=added.resources_id)

    async def publish(self, candidate: Candidate) -> None:
        """Make a candidate the latest resources, which a rollout uses that names none."""
        await self._store.update_resources(candidate.resources_id, self.bundle(candidate.texts))

    async def run(
        self, candidate: Candidate, dataset: Dataset[TaskInput], samples: Sequence[int], *, mode: RolloutMode, step: str
    ) -> Batch:
        """Run the agent with a candidate, once on each of these samples.

        Args:
            candidate: The prompts.
            dataset: Where the samples are.
            samples: Their indexes, from 0.
            mode: What it is for.
            step: Names the part of the search; with it, a candidate and a mode come once.
        """
        self.asked += len(samples)
        batch = await run_batch(
            self._store,
            [dataset[sample] for sample in samples],
            mode=mode,
            resources_id=candidate.resources_id,
            timeout_seconds=self._timeout_seconds,
            config=self._config,
            request_id=self._name(f"{mode}/{step}", candidate.texts),
            kept_back=step == HELD,
        )
        self.lost += batch.lost
        return batch

    async def validate(
        self, candidate: Candidate, dataset: Dataset[TaskInput], samples: Sequence[int], *, step: str
    ) -> Batch:
        """Try a candidate on validation samples, those that it was not tried on before; it keeps the rewards."""
        missing = [sample for sample in samples if sample not in candidate.rewards]
        if not missing:
            return Batch([])
        batch = await self.run(candidate, dataset, missing, mode="val", step=step)
        candidate.rewards.update(zip(missing, [outcome.reward for outcome in batch.outcomes], strict=True))
        return batch

    def _name(self, what: str, texts: Texts) -> str:
        return f"{self._search_key}/{what}/{digest(json.dumps(list(texts.items())))}"


@dataclass(kw_only=True, slots=True)
class Setting:
    """What every search works with."""

    prompts: Mapping[str, PromptTemplate]
    """The first prompts by name, those that are tuned."""
    trials: Trials
    saved: SavedSearch
    adapter: TraceToMessages
    train: Dataset[Any]
    val: Dataset[Any]
    counts: Counter[str] = field(default_factory=Counter)
    rejections: Counter[str] = field(default_factory=Counter)
    """Why edits were rejected -> how many."""

    def spent_on(self, answer: Answer) -> str:
        """Count what an answer has used, and return its text."""
        self.counts["own_input_tokens"] += answer.input_tokens
        self.counts["own_output_tokens"] += answer.output_tokens
        return answer.text

    def prompt(self, name: str, text: str) -> PromptTemplate:
        """Return one of the prompts with this text."""
        return self.prompts[name].model_copy(update={"template": text})

    def shown(self, name: str, text: str) -> ShownPrompt:
        """Return one of the prompts with this text as models are shown it."""
        return ShownPrompt.of(name, self.prompt(name, text))
