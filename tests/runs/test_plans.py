"""What a run does at most is known before it starts."""

from dataclasses import dataclass
from typing import Any

import pytest

from lightning_core import PromptTemplate, Trainer, rollout
from lightning_core.algorithm import Algorithm, Baseline
from lightning_core.runs.plan import plan_of
from lightning_core.testing.store.base import present
from lightning_core.types import Dataset, NamedResources

PROMPT: NamedResources = {"main": PromptTemplate(template="Hello")}


@dataclass
class Plan:
    rollouts: int

    def __str__(self) -> str:
        return f"at most {self.rollouts} rollouts and 3 walks"


class Search(Algorithm):
    async def run(self, train_dataset: Dataset[Any] | None = None, val_dataset: Dataset[Any] | None = None) -> None:
        """Do nothing."""


class Planned(Search):
    def plan(self, train_dataset: Dataset[Any] | None = None, val_dataset: Dataset[Any] | None = None) -> Plan:
        return Plan(len(train_dataset or ()) * 1000)


class OtherPlan(Search):
    def plan(self, *, horizon: int) -> Plan:
        return Plan(horizon)


def test_held_out_samples_are_in_the_total_and_named() -> None:
    algorithm = Planned()
    plan = present(plan_of(algorithm, [1, 2], None, [3, 4, 5]))
    assert plan.rollouts == 2003
    algorithm.set_initial_resources(PROMPT)  # which are measured, and the best
    plan = present(plan_of(algorithm, [1, 2], None, [3, 4, 5]))
    assert plan.rollouts == 2006
    assert str(plan) == (
        "at most 2,006 rollouts: 6 on held-out samples, and by the algorithm at most 2000 rollouts and 3 walks"
    )


@pytest.mark.parametrize("algorithm", [Search(), OtherPlan()])
def test_algorithm_without_a_plan_is_one_of_which_nothing_is_known(algorithm: Algorithm) -> None:
    assert plan_of(algorithm, [1, 2], None, [3]) is None


@pytest.mark.parametrize("n_epochs", [1, 3])
@pytest.mark.parametrize("initial", [None, PROMPT])
@pytest.mark.parametrize("test", [None, [4, 5]])
def test_baseline_stays_within_its_plan(n_epochs: int, initial: NamedResources | None, test: list[int] | None) -> None:
    @rollout
    async def agent(task: int) -> float:
        return 1.0

    algorithm = Baseline(n_epochs=n_epochs)
    algorithm.set_initial_resources(initial)
    plan = plan_of(algorithm, [1, 2], [3], test)
    result = Trainer(algorithm=algorithm, initial_resources=initial).fit(
        agent, [1, 2], val_dataset=[3], test_dataset=test
    )
    asked = 3 * n_epochs + (0 if test is None else len(test))
    assert result.rollouts.succeeded == asked
    assert plan is not None
    assert asked <= present(plan.rollouts) <= 3 * n_epochs + (0 if test is None else 2 * len(test))
