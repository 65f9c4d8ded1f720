"""Whole runs: a real trainer, store and runners, and models behind a real HTTP endpoint."""

import asyncio
import itertools
import os
import random
from collections.abc import Mapping
from typing import Any

import pytest
from lightning_apo import APO
from toy_models import ToyModels
from toy_run import FIRST, HELD, OPTIONS, TRAIN, VAL, ToyRun, fit, quality

from lightning_core import InMemoryLightningStore, PromptTemplate
from lightning_core.errors import AlgorithmError, InvalidInput


@pytest.mark.parametrize("seed", [0, 1])
async def test_the_prompt_gets_better(models: ToyModels, seed: int) -> None:
    run = ToyRun()
    result = await fit(run, models, seed=seed, beam_rounds=4)
    assert result.best_resources is not None
    best = result.best_resources["main"]
    assert isinstance(best, PromptTemplate)
    assert quality(best.template) >= 0.55
    assert result.metrics["val_gain"] > 0
    assert result.metrics["val_samples"] == HELD
    assert [len(run.steps), result.metrics["lost"]] == [4, 0]


async def test_edits_that_are_broken_or_change_the_placeholders_cost_no_rollout(models: ToyModels) -> None:
    broken = ["Answer.", "Answer {question} as {role}.", "Answer {question", "{question!r}"]
    models.edit = lambda template, seed: random.Random(seed).choice(broken)
    run = ToyRun()
    result = await fit(run, models)
    assert run.templates("train") | run.templates("val") == {FIRST}
    assert [result.metrics["rejected"], result.metrics["candidates"]] == [3 * 2 * 3, 1]
    assert result.best_resources == run.resources


async def test_equal_edits_are_tried_once(models: ToyModels) -> None:
    models.edit = lambda template, seed: "Think first.\n{question}"
    run = ToyRun()
    result = await fit(run, models)
    tried = [(template, question) for mode, template, question in run.rollouts if mode == "val"]
    assert len(tried) == len(set(tried)) == 2 * len(VAL)
    assert [result.metrics["candidates"], result.metrics["duplicates"]] == [2, 17]


async def test_a_prompt_is_run_once_a_round_on_the_training_samples_of_all_its_critiques(models: ToyModels) -> None:
    run = ToyRun()
    await fit(run, models, beam_rounds=1)
    questions = [question for mode, _, question in run.rollouts if mode == "train"]
    assert len(questions) == len(set(questions)) == 2
    requests = [request for request in models.requests if request["model"] == "critic"]
    assert len({request["seed"] for request in requests}) == len(requests) == 2
    assert all(question in text for text in models.texts("critic") for question in questions)
    assert not any("val " in text for text in models.texts("critic"))


async def test_candidates_race_on_the_same_samples_and_half_of_them_drop_out_each_time(models: ToyModels) -> None:
    run = ToyRun()
    words = itertools.count()
    models.edit = lambda template, lot: f"{template}\nWord {next(words)}."
    await fit(run, models, beam_rounds=1, branch_factor=4, run_initial_validation=False, max_rollouts=72)
    of_template: dict[str, set[str]] = {}
    for mode, template, question in run.rollouts:
        if mode == "val":
            of_template.setdefault(template, set()).add(question)
    tried = sorted(of_template.values(), key=len)
    assert len(tried) == 9  # the first prompt takes part
    assert all(fewer <= more for fewer, more in itertools.pairwise(tried))
    assert len({len(each) for each in tried}) >= 3
    assert 2 * len(tried[0]) < len(tried[-1])


@pytest.mark.parametrize("most", [30, 61, 100])
async def test_a_run_has_no_more_rollouts_than_it_may(models: ToyModels, most: int) -> None:
    run = ToyRun()
    result = await fit(run, models, max_rollouts=most)
    assert most - 10 <= len(run.rollouts) <= most
    assert result.metrics["candidates"] > 1


async def test_rollouts_that_do_not_take_a_round_are_refused_before_anything_is_done(models: ToyModels) -> None:
    run = ToyRun()
    with pytest.raises(InvalidInput, match="max_rollouts is 10, and the first round takes 11: 2 for critiques"):
        await fit(run, models, max_rollouts=10)
    assert run.rollouts == []


async def test_the_gain_is_tested_on_samples_that_only_the_first_and_the_best_prompt_see(models: ToyModels) -> None:
    run = ToyRun()
    result = await fit(run, models)
    assert result.best_resources is not None
    tried_with: dict[str, set[str]] = {}
    for mode, template, question in run.rollouts:
        if mode == "val":
            tried_with.setdefault(question, set()).add(template)
    best = result.best_resources["main"]
    assert isinstance(best, PromptTemplate)
    assert sum(templates == {FIRST, best.template} for templates in tried_with.values()) == HELD
    assert len(run.templates("val")) > 5


async def test_where_the_best_is_not_better_on_all_samples_the_first_prompt_stays(models: ToyModels) -> None:
    """Edits are a little better where they are chosen, and much worse on the held samples."""
    held: set[str] = set()

    def reward(template: str, task: Mapping[str, Any]) -> float:
        if not models.requests and task["question"].startswith("val"):
            held.add(task["question"])  # the first prompt is measured on them before anything else
        if task["question"] in held:
            return float(template == FIRST)
        return 0.4 if template == FIRST else 0.6

    run = ToyRun(reward=reward)
    result = await fit(run, models, beam_rounds=2)
    assert run.steps[-1]["val_reward"] == pytest.approx(0.6)
    assert result.best_resources == run.resources
    assert "val_gain" not in result.metrics


async def test_lost_samples_are_counted_and_are_no_reward_of_zero(models: ToyModels) -> None:
    def fail_sometimes(template: str, task: Mapping[str, Any]) -> float | None:
        if task["question"] in ("train 1", "val 1"):
            raise RuntimeError("the tool is broken")
        return None if task["question"] == "val 2" else 1.0

    run = ToyRun(reward=fail_sometimes, train=TRAIN[:2])
    result = await fit(run, models, beam_rounds=1)
    assert result.metrics["val_reward"] == 1.0
    lost = [question for _, _, question in run.rollouts if question in ("train 1", "val 1", "val 2")]
    assert result.metrics["lost"] == len(lost)
    assert any("Failed: RuntimeError: the tool is broken" in text for text in models.texts("critic"))


async def test_a_prompt_with_which_everything_fails_loses(models: ToyModels) -> None:
    def fail_with_edits(template: str, task: Mapping[str, Any]) -> float:
        if template != FIRST:
            raise RuntimeError("confused")
        return 0.0

    run = ToyRun(reward=fail_with_edits)
    result = await fit(run, models)
    assert result.best_resources == run.resources
    assert result.metrics["val_reward"] == 0.0
    assert run.templates("train") == {FIRST}


async def test_a_first_prompt_with_which_everything_fails_can_be_edited_into_one_that_works(models: ToyModels) -> None:
    def fail_at_first(template: str, task: Mapping[str, Any]) -> float:
        if template == FIRST:
            raise RuntimeError("the answer cannot be parsed")
        return quality(template)

    result = await fit(ToyRun(reward=fail_at_first), models)
    assert result.status == "succeeded"
    assert result.metrics["val_reward"] > 0.2
    assert "val_gain" not in result.metrics
    assert "Failed: RuntimeError: the answer cannot be parsed" in models.texts("critic")[0]


async def test_the_run_stops_when_no_model_answers_and_keeps_what_it_knows(models: ToyModels) -> None:
    models.status = 401
    async with models.client() as client:
        algorithm = APO(client, **OPTIONS)
        with pytest.raises(
            AlgorithmError, match=r"round 1: none of 4 edits was made; .*'critic'.*out of order.*Check the endpoint"
        ) as caught:
            await ToyRun().fit(algorithm)
        assert type(caught.value.__cause__.__cause__).__name__ == "AuthenticationError"  # type: ignore[union-attr]
        assert algorithm.get_best_prompt().template == FIRST


async def test_a_cancelled_run_leaves_nothing_running_and_keeps_the_best(models: ToyModels) -> None:
    is_asked = asyncio.Event()

    def critique(text: str, seed: int) -> str:
        if "Think first." in text.partition("</prompt_template>")[0]:
            is_asked.set()
        return "- Too vague."

    models.critique = critique
    before = asyncio.all_tasks()
    async with models.client() as client:
        algorithm = APO(client, **OPTIONS, seed=1)
        run = ToyRun(latency=random.Random(0))
        fitting = asyncio.create_task(run.fit(algorithm))
        await asyncio.wait_for(is_asked.wait(), timeout=20)
        fitting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await fitting
        assert "Think first." in algorithm.get_best_prompt().template
    left = {task.get_coro().__qualname__ for task in asyncio.all_tasks() - before}  # type: ignore[union-attr]
    assert left <= {"RequestHandler.start"}  # the endpoint's side of a connection


async def test_without_a_client_one_is_made_from_the_environment_when_the_run_starts(
    models: ToyModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "placeholder")
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)

    class LeadToModels(ToyRun):
        def lightning_run_start(self, run_id: str) -> None:
            os.environ["OPENAI_BASE_URL"] = models.url

    result = await LeadToModels().fit({"name": "apo", **OPTIONS, "beam_rounds": 1})
    assert result.status == "succeeded"
    assert models.requests


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"resources": {}}, "they have none; give one"),
        ({"resources": {"main": PromptTemplate(template="<critique>")}}, "prompt 'main' contains '<critique>'"),
        ({"train": None}, "apo needs a train_dataset, and got none"),
        ({"val": []}, "apo needs a val_dataset, and got an empty one"),
        ({"train": VAL}, "all 20 samples of the train_dataset are in the val_dataset, too"),
    ],
)
async def test_what_a_run_lacks_is_named(models: ToyModels, changes: dict[str, Any], message: str) -> None:
    run = ToyRun(**changes)
    with pytest.raises(InvalidInput, match=message):
        await fit(run, models)
    assert run.rollouts == []


async def test_the_store_knows_of_each_version_its_parent_and_has_the_best_as_its_latest(models: ToyModels) -> None:
    store, run = InMemoryLightningStore(), ToyRun()
    run.store = store
    result = await fit(run, models)
    latest = await store.get_latest_resources()
    assert latest is not None
    assert latest.resources == result.best_resources
    first, *edits = await store.query_resources()
    ids = {first.resources_id}
    assert first.parent_id is None
    assert len(edits) > 5
    for edit in edits:
        assert edit.parent_id in ids
        ids.add(edit.resources_id)
    assert len({edit.parent_id for edit in edits}) > 1
