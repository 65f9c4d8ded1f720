"""A round in which no rollout gives a reward is lost, and the search goes on."""

from collections.abc import Mapping
from typing import Any

import pytest
from toy_models import ToyModels
from toy_run import VAL, ToyRun, fit, search, succeed_where_easy

from lightning_core.errors import NoRewards


class Outage:
    """The toy task, which fails while the search is in some of its rounds, from 1."""

    def __init__(self, models: ToyModels, *rounds: int) -> None:
        self.run = ToyRun(reward=self.reward)
        self._models = models
        self._rounds = rounds

    def reward(self, template: str, task: Mapping[str, Any]) -> float:
        # A round has six critiques, and ends with a step.
        if len(self.run.steps) + 1 in self._rounds and (self._models.requests or task["question"].startswith("train")):
            raise RuntimeError("no such host")
        return succeed_where_easy(template, task)


async def test_a_round_without_any_reward_is_lost_and_the_search_goes_on(
    models: ToyModels, caplog: pytest.LogCaptureFixture
) -> None:
    result = await fit(Outage(models, 2).run, models, beam_rounds=4)
    assert "lightning.apo_round_lost round=2: no rollout gave a reward; RuntimeError: no such host" in caplog.text
    assert result.status == "succeeded"
    assert result.metrics["lost_rounds"] == 1
    assert result.metrics["lost"] > 0
    assert result.metrics["val_reward"] > 0.2


async def test_a_lost_round_is_held_against_no_prompt(models: ToyModels) -> None:
    history = (await search(Outage(models, 2).run, models, beam_rounds=2)).get_result().history
    measured = [candidate for candidate in history if len(candidate.rewards) == len(VAL)]
    assert all(None not in candidate.rewards.values() for candidate in history)
    assert any(candidate.round_number == 1 for candidate in measured), "the outage threw it out of the beam"
    lost = [candidate for candidate in history if candidate.round_number == 2]
    assert lost
    assert not any(candidate.rewards for candidate in lost)


async def test_a_run_whose_whole_training_set_is_lost_fails_with_the_first_cause(models: ToyModels) -> None:
    def fail_in_training(template: str, task: Mapping[str, Any]) -> float:
        if task["question"].startswith("train"):
            raise RuntimeError("no such host")
        return succeed_where_easy(template, task)

    run = ToyRun(reward=fail_in_training)
    with pytest.raises(
        NoRewards, match=r"^no rollout on training samples .* in 3 rounds, .*: RuntimeError: no such host$"
    ):
        await fit(run, models)
    assert len(run.steps) == 3


async def test_when_all_rounds_are_lost_the_run_fails(models: ToyModels) -> None:
    run = Outage(models, 1, 2, 3).run
    with pytest.raises(NoRewards, match="no such host"):
        await fit(run, models)
    assert len(run.steps) == 3


async def test_where_the_last_validation_is_lost_the_best_of_the_rounds_is_the_best(
    models: ToyModels, caplog: pytest.LogCaptureFixture
) -> None:
    result = await fit(Outage(models, 2).run, models, beam_rounds=1)
    assert "lightning.apo_last_validation_lost; no rollout gave a reward; RuntimeError: no such host" in caplog.text
    assert result.best_resources is not None
    assert result.best_resources["main"] != ToyRun().resources["main"]
    assert "val_gain" not in result.metrics


async def test_the_search_fails_where_the_first_prompt_gives_no_reward_and_no_edit_can_be_tried(
    models: ToyModels,
) -> None:
    def fail(template: str, task: Mapping[str, Any]) -> float:
        if task["question"].startswith("val"):
            raise RuntimeError("no such host")
        return 1.0

    models.edit = lambda template, seed: "Answer."
    with pytest.raises(NoRewards, match=r"round 1: none of \d+ rollouts .*no such host"):
        await fit(ToyRun(reward=fail), models)
