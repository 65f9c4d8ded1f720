"""The budget is known before a run starts."""

import itertools
from pathlib import Path
from typing import Any

import pytest
from lightning_apo import APO
from toy_models import ToyModels
from toy_run import OPTIONS, TRAIN, VAL, ToyRun, fit

from lightning_core import PromptTemplate
from lightning_core.runs.plan import plan_of


def test_a_plan_says_in_one_line_what_it_costs() -> None:
    # 4 training samples for the first prompt, then for each of a beam of 4; 3 rounds of 16 edits x 10 validation
    # and one more for the beam; and two prompts on a third of the validation samples
    options = {"beam_rounds": 3, "val_batch_size": 10}
    plan = APO(**options).plan(list(range(100, 400)), list(range(50)))
    assert str(plan) == (
        "at most 560 rollouts and 60 model calls of its own (12 critiques by gpt-5-mini, 48 edits by gpt-4.1-mini)"
    )
    assert (plan.rollouts, plan.model_calls) == (560, 60)


def test_small_datasets_need_fewer_rollouts() -> None:
    plan = APO(beam_rounds=2).plan(["a", "b"], ["c"])
    assert plan.rollouts == (2 + 4 * 2) + 2 * (16 + 4)  # one validation sample chooses, and none is held


def test_several_prompts_cost_more_rounds() -> None:
    algorithm = APO(beam_rounds=2)
    algorithm.set_initial_resources({name: PromptTemplate(template=name) for name in ("a", "b")})
    plan = algorithm.plan(["t"], ["v"])
    assert (plan.critic_calls, plan.editor_calls) == (16, 64)


@pytest.mark.parametrize("seed", range(2))
async def test_a_run_stays_within_its_plan(models: ToyModels, seed: int) -> None:
    words = itertools.count()
    models.edit = lambda template, lot: f"{template}\nWord {next(words)}."
    run = ToyRun()
    result = await fit(run, models, seed=seed)
    plan = APO(**OPTIONS).plan(TRAIN, VAL)
    # The bound is not far off where all edits differ, unless all of the validation set is used up.
    assert 0.8 * plan.rollouts <= len(run.rollouts) <= plan.rollouts
    assert (result.metrics["critic_calls"], result.metrics["editor_calls"]) == (plan.critic_calls, plan.editor_calls)
    assert len(models.requests) == plan.model_calls


@pytest.mark.parametrize("options", [{}, {"max_rollouts": 60}, {"beam_rounds": 1, "run_initial_validation": False}])
async def test_with_held_out_samples_a_run_stays_within_the_total(models: ToyModels, options: dict[str, Any]) -> None:
    words = itertools.count()
    models.edit = lambda template, lot: f"{template}\nThink first. Word {next(words)}."
    run = ToyRun(test=[{"question": f"test {number}", "difficulty": number / 20} for number in range(20)])
    algorithm = APO(**{**OPTIONS, **options})
    algorithm.set_initial_resources(run.resources)
    plan = plan_of(algorithm, TRAIN, VAL, run.test)
    result = await fit(run, models, **options)
    assert plan is not None
    assert plan.rollouts is not None
    assert algorithm.plan(TRAIN, VAL).rollouts + 40 == plan.rollouts
    assert 0.7 * plan.rollouts <= result.rollouts.succeeded <= plan.rollouts


def test_the_plans_that_the_docs_show_are_true() -> None:
    plugin = Path(__file__).parents[1]
    readme = APO(beam_width=2, branch_factor=4, beam_rounds=3).plan(range(50), range(50, 100))
    assert str(readme) in (plugin / "README.md").read_text(encoding="utf-8")
    page = APO(beam_width=2, branch_factor=3, beam_rounds=2, val_batch_size=20).plan(range(40), range(40, 80))
    assert str(page) in (plugin.parents[1] / "docs" / "improve.md").read_text(encoding="utf-8")
