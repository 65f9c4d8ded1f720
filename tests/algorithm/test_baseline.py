from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pytest

from lightning_core.agent import rollout
from lightning_core.algorithm import Baseline
from lightning_core.errors import AlgorithmError, NoRewards
from lightning_core.store import InMemoryLightningStore
from lightning_core.types import NamedResources, PromptTemplate

if TYPE_CHECKING:
    from tests.algorithm.conftest import Running

pytestmark = pytest.mark.usefixtures("nothing_left_running")


class Reports(list[tuple[dict[str, float], int | None, NamedResources | None]]):
    def __call__(
        self, metrics: Mapping[str, float], *, step: int | None = None, best_resources: NamedResources | None = None
    ) -> None:
        self.append((dict(metrics), step, best_resources))


def baseline(store: InMemoryLightningStore, **options: Any) -> tuple[Baseline, Reports]:
    algorithm, reports = Baseline(**options), Reports()
    algorithm.set_store(store)
    algorithm.set_reporter(reports)
    return algorithm, reports


@rollout
async def echo(task: float) -> float:
    return task


async def test_baseline_uses_the_initial_resources_and_reports_them_as_the_best(
    store: InMemoryLightningStore, running: "Running"
) -> None:
    @rollout
    async def agent(task: Any, prompt_template: PromptTemplate) -> float:
        return len(prompt_template.template)

    resources: NamedResources = {"prompt": PromptTemplate(template="abcd")}
    algorithm, reports = baseline(store)
    algorithm.set_initial_resources(resources)
    async with running(agent):
        await algorithm.run(["task"])

    assert reports == [({"train_reward": 4.0}, 1, resources)]


async def test_baseline_fails_when_one_of_the_datasets_gave_no_reward(
    store: InMemoryLightningStore, running: "Running"
) -> None:
    @rollout
    async def agent(task: float) -> float:
        if task == 0:
            raise ValueError("zero")
        return task

    algorithm, reports = baseline(store)
    async with running(agent):
        with pytest.raises(NoRewards, match="epoch 1, training samples: none of 2 rollouts gave a reward; the first:"):
            await algorithm.run([0, 0], [0, 3])

    assert reports == [({"val_reward": 3.0}, 1, None)]


@pytest.mark.parametrize("datasets", [(None, None), ([], None), ([], [])])
async def test_baseline_without_a_sample_says_what_to_give(store: InMemoryLightningStore, datasets: Any) -> None:
    algorithm, _ = baseline(store)
    with pytest.raises(AlgorithmError, match="baseline has nothing to run; give a train_dataset or a val_dataset"):
        await algorithm.run(*datasets)


async def test_measurement_that_came_to_its_end_is_not_continued_by_the_next(
    store: InMemoryLightningStore, running: "Running"
) -> None:
    calls: list[float] = []

    @rollout
    async def agent(task: float) -> float:
        calls.append(task)
        if len(calls) == 1:
            raise ValueError("not yet")
        return task

    algorithm, reports = baseline(store)
    async with running(agent):
        with pytest.raises(NoRewards):
            await algorithm.run([1])
        await algorithm.run([1])
        await algorithm.run([1])

    assert calls == [1, 1, 1]
    assert [metrics for metrics, _, _ in reports] == [{"train_reward": 1.0}] * 2
