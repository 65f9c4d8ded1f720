"""A whole run on a toy task: the trainer, its store and its runners, and an agent that calls no model."""

import asyncio
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from lightning_apo import APO
from toy_models import ToyModels

from lightning_core import FitResult, NamedResources, PromptTemplate, Trainer, emit_message, rollout
from lightning_core.types import Rollout

FIRST = "Answer the question.\n\n{question}"
TRAIN = [{"question": f"train {number}", "difficulty": number / 12} for number in range(12)]
VAL = [{"question": f"val {number}", "difficulty": number / 20} for number in range(20)]
HELD = len(VAL) // 3
"""On so many validation samples the gain is tested at the end."""
OPTIONS: dict[str, Any] = {
    "gradient_model": "critic",
    "apply_edit_model": "editor",
    "gradient_batch_size": 2,
    "val_batch_size": 10,
    "beam_width": 2,
    "branch_factor": 3,
    "beam_rounds": 3,
}


def quality(template: str) -> float:
    """The share of tasks that an agent with this prompt gets right."""
    gains = {"Think first.": 0.35, "Check your units.": 0.25, "Guess if you are unsure.": -0.2}
    return 0.2 + sum(gain for edit, gain in gains.items() if edit in template)


def succeed_where_easy(template: str, task: Mapping[str, Any]) -> float:
    return float(task["difficulty"] < quality(template) - 1e-9)


@dataclass
class ToyRun:
    """Runs `fit`, and keeps what the agent and the hooks saw."""

    reward: Callable[[str, Mapping[str, Any]], float | None] = succeed_where_easy
    resources: NamedResources = field(default_factory=lambda: {"main": PromptTemplate(template=FIRST)})
    train: list[dict[str, Any]] | None = field(default_factory=lambda: list(TRAIN))
    val: list[dict[str, Any]] | None = field(default_factory=lambda: list(VAL))
    test: list[dict[str, Any]] | None = None
    latency: random.Random | None = None
    store: object = "memory"
    rollouts: list[tuple[str | None, str, str]] = field(default_factory=list)
    """Mode, template and question of each."""
    seen_resources: list[NamedResources] = field(default_factory=list)
    steps: list[dict[str, float | None]] = field(default_factory=list)

    async def fit(self, algorithm: Any) -> FitResult:
        @rollout
        async def agent(task: Any, resources: NamedResources, rollout: Rollout) -> float | None:
            (prompt,) = [each for each in resources.values() if isinstance(each, PromptTemplate)]
            self.rollouts.append((rollout.mode, prompt.template, task["question"]))
            self.seen_resources.append(resources)
            if self.latency is not None:
                await asyncio.sleep(self.latency.random() / 500)
            emit_message(f"I was asked: {prompt.format(question=task['question'])}")
            return self.reward(prompt.template, task)

        trainer = Trainer(
            algorithm=algorithm,
            store=self.store,
            n_runners=4,
            initial_resources=self.resources,
            hooks=[self],
            stop_on_identical_failures=False,  # what apo makes of failures is tested
        )
        return await trainer.fit_async(agent, self.train, val_dataset=self.val, test_dataset=self.test)

    def lightning_step_end(self, step: int, metrics: Mapping[str, float | None]) -> None:
        self.steps.append(dict(metrics))

    def templates(self, mode: str) -> set[str]:
        return {template for of_mode, template, _ in self.rollouts if of_mode == mode}


async def search(run: ToyRun, models: ToyModels, **options: Any) -> APO:
    """Fit, and return what has searched."""
    async with models.client() as client:
        algorithm = APO(client, **{**OPTIONS, **options})
        await run.fit(algorithm)
        return algorithm


async def fit(run: ToyRun, models: ToyModels, **options: Any) -> FitResult:
    async with models.client() as client:
        return await run.fit(APO(client, **{**OPTIONS, **options}))
