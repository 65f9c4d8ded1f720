"""Before and after, from the rollouts of a run in the memory store."""

from dataclasses import replace
from typing import Any

import pytest

from lightning_core import emit_reward, rollout
from lightning_core.algorithm import algo, run_batch
from lightning_core.algorithm.base import Reporter
from lightning_core.algorithm.estimates import Estimate, PairedDifference, estimate, paired_difference
from lightning_core.runs import FitResult, compare
from lightning_core.store import LightningStore
from lightning_core.store.memory import InMemoryLightningStore
from lightning_core.testing.store.base import present
from lightning_core.trainer import Trainer
from lightning_core.types import Dataset, NamedResources, PromptTemplate, samples_of

FIRST: NamedResources = {"main_prompt": PromptTemplate(template="answer")}
BEST: NamedResources = {"main_prompt": PromptTemplate(template="please answer")}


@rollout
async def agent(task: int, prompt_template: PromptTemplate) -> None:
    """Right on even tasks, and with a polite prompt on all but the last; fails on the negative ones."""
    if task < 0:
        raise ValueError("negative")
    emit_reward(float(task % 2 == 0 or ("please" in prompt_template.template and task < 9)))


@algo
async def improve(
    store: LightningStore, train_dataset: Dataset[Any], val_dataset: Dataset[Any] | None, report: Reporter
) -> None:
    """Tries the first prompt and a better one on both datasets."""
    for resources in (FIRST, BEST):
        version = (await store.add_resources(resources)).resources_id
        await run_batch(store, samples_of(train_dataset), mode="train", resources_id=version)
        if val_dataset is not None:
            await run_batch(store, samples_of(val_dataset), mode="val", resources_id=version)
    report({}, best_resources=BEST)


def without_interval(measured: Estimate | PairedDifference | None) -> Estimate | PairedDifference | None:
    return None if measured is None else replace(measured, low=None, high=None)


def fit(algorithm: object, train: list[int], **datasets: list[int]) -> FitResult:
    return Trainer(algorithm=algorithm, initial_resources=FIRST).fit(agent, train, **datasets)


def test_first_and_best_are_compared_sample_by_sample() -> None:
    comparison = present(fit(improve, [0], val_dataset=[0, 1, 2, 3, 9]).comparison)
    before, after = [1.0, 0.0, 1.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0, 0.0]
    assert (comparison.mode, comparison.kept_back) == ("val", False)
    assert comparison.before == without_interval(estimate(before))
    assert comparison.after == without_interval(estimate(after))
    assert comparison.difference == without_interval(paired_difference(before, after))


def test_samples_that_the_algorithm_kept_back_are_compared_alone_with_their_interval() -> None:
    @algo
    async def keep_back(store: LightningStore, val_dataset: Dataset[Any], report: Reporter) -> None:
        for resources in (FIRST, BEST):
            version = (await store.add_resources(resources)).resources_id
            for kept_back, samples in ((False, val_dataset[2:]), (True, val_dataset[:2])):
                await run_batch(store, samples, mode="val", resources_id=version, kept_back=kept_back)
        report({}, best_resources=BEST)

    comparison = (
        Trainer(algorithm=keep_back, initial_resources=FIRST).fit(agent, val_dataset=[1, 9, 3, 5, 7]).comparison
    )
    assert comparison is not None
    assert (comparison.mode, comparison.kept_back) == ("val", True)
    assert comparison.difference == paired_difference([0.0, 0.0], [1.0, 0.0])
    assert comparison.difference.low is not None


def test_best_that_was_not_tried_on_what_is_kept_back_is_compared_on_what_chose_it() -> None:
    @algo
    async def stop_before_the_test(store: LightningStore, val_dataset: Dataset[Any], report: Reporter) -> None:
        first, best = [(await store.add_resources(each)).resources_id for each in (FIRST, BEST)]
        await run_batch(store, val_dataset[:2], mode="val", resources_id=first, kept_back=True)
        for version in (first, best):
            await run_batch(store, val_dataset[2:], mode="val", resources_id=version)
        report({}, best_resources=BEST)

    trainer = Trainer(algorithm=stop_before_the_test, initial_resources=FIRST)
    comparison = present(trainer.fit(agent, val_dataset=[0, 2, 1, 3]).comparison)
    assert not comparison.kept_back
    assert comparison.before == without_interval(estimate([0.0, 0.0]))
    assert comparison.difference == without_interval(paired_difference([0.0, 0.0], [1.0, 1.0]))


def test_held_out_samples_go_before_those_that_the_algorithm_saw() -> None:
    comparison = present(fit(improve, [0], val_dataset=[0], test_dataset=[1, 3]).comparison)
    assert comparison.mode == "test"
    assert comparison.difference == paired_difference([0.0, 0.0], [1.0, 1.0])


def test_algorithm_that_tells_nothing_leaves_the_reward_of_the_agent_as_it_is() -> None:
    @algo
    async def silent(store: LightningStore, train_dataset: Dataset[Any]) -> None:
        for each in train_dataset:
            await run_batch(store, [each, each], mode="train")

    @rollout
    async def plain(task: int) -> float:
        return task / 4

    comparison = present(Trainer(algorithm=silent).fit(plain, [1, 2, 3]).comparison)
    assert comparison.before == estimate([0.25, 0.5, 0.75])  # each sample once, though it was run twice


@pytest.mark.parametrize("initial", [None, FIRST])
async def test_run_without_rewards_has_nothing_to_compare(initial: NamedResources | None) -> None:
    store = InMemoryLightningStore()
    await store.start_rollout(1)
    assert await compare(store, initial=initial, best=None) is None
