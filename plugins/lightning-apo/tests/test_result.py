"""What a run says of how sure it is, and on which samples it learns and chooses."""

import asyncio

import pytest
from toy_models import ToyModels, edit_by_lot
from toy_run import FIRST, HELD, TRAIN, VAL, ToyRun, fit, search

from lightning_core.algorithm.estimates import estimate, paired_difference


async def test_the_result_carries_its_interval_the_paired_difference_and_the_number_of_samples(
    models: ToyModels,
) -> None:
    run = ToyRun()
    algorithm = await search(run, models)
    assert {step["val_reward_low"] for step in run.steps} == {None}  # of samples that chose the best of each step
    result = algorithm.get_result()
    # Only these two were tried on the held samples.
    first, best = (each for each in result.history if len(each.rewards) == len(VAL))
    tried = {sample for each in result.history if each not in (first, best) for sample in each.rewards}
    held = [sample for sample in range(len(VAL)) if sample not in tried]
    before, after = first.on(held), best.on(held)
    assert len(held) == HELD
    assert result.gain == paired_difference(before, after)
    assert result.score == estimate(after)
    assert result.gain is not None
    assert str(result) == str(result.gain)
    assert str(result).endswith(", n=6)")
    metrics = result.metrics
    assert metrics["val_gain"] == pytest.approx(metrics["val_reward"] - metrics["val_reward_initial"])
    assert metrics["val_reward_low"] < metrics["val_reward"] < metrics["val_reward_high"]
    assert metrics["val_gain_low"] < metrics["val_gain"] < metrics["val_gain_high"]


async def test_a_run_that_finds_nothing_better_has_no_gain(models: ToyModels) -> None:
    models.edit = lambda template, seed: f"Be polite.\n{template}"
    algorithm = await search(ToyRun(), models)
    result = algorithm.get_result()
    assert result.gain is None
    assert algorithm.get_best_prompt().template == FIRST
    assert result.metrics["val_reward"] == pytest.approx(0.2)
    assert "val_gain" not in result.metrics
    assert str(result) == str(result.score)


async def test_samples_that_are_in_both_datasets_make_no_edit(
    models: ToyModels, caplog: pytest.LogCaptureFixture
) -> None:
    run = ToyRun(train=[*TRAIN[:4], *VAL[:3]])
    await fit(run, models, beam_rounds=1)
    assert "lightning.apo_samples_left_out count=3" in caplog.text
    assert {question for mode, _, question in run.rollouts if mode == "train"} <= {task["question"] for task in TRAIN}


async def test_rejections_are_counted_by_reason(models: ToyModels) -> None:
    models.edit = lambda template, seed: "Answer." if seed % 2 else "{question} {extra}"
    algorithm = await search(ToyRun(), models, beam_rounds=1)
    result = algorithm.get_result()
    assert set(result.rejections) == {"placeholder 'question' is missing", "placeholder 'extra' is new"}
    assert sum(result.rejections.values()) == result.counts["rejected"] == 6


async def test_no_branch_waits_for_another_one(models: ToyModels) -> None:
    """The first edit is made while the critique of another branch is still to come."""
    edited, waiting = asyncio.Event(), 0

    def edit(template: str, seed: int) -> str:
        edited.set()
        return edit_by_lot(template, seed)

    async def wait_for_an_edit(model: str) -> None:
        nonlocal waiting
        waiting += model == "critic"
        if model == "critic" and waiting == 2:  # the last critic to be asked answers only when there is some edit
            await asyncio.wait_for(edited.wait(), timeout=20)

    models.edit, models.before_answer = edit, wait_for_an_edit
    result = await fit(ToyRun(), models, beam_rounds=1)
    assert result.metrics["lost_branches"] == 0
    assert edited.is_set()
