"""Several prompts of one bundle."""

import random
from typing import Any

import pytest
from lightning_apo import APO
from toy_models import CRITIQUE, TEMPLATE, ToyModels
from toy_run import OPTIONS, TRAIN, VAL

from lightning_core import FitResult, PromptTemplate, Trainer, rollout
from lightning_core.errors import AlgorithmError

PLAN, ANSWER = "Plan.\n{question}", "Answer {{ question }} with this plan: {{ plan }}"
RESOURCES = {"plan": PromptTemplate(template=PLAN), "answer": PromptTemplate(template=ANSWER, engine="jinja")}
GAINS = {"First list what is given.": 0.3, "Check the result.": 0.3}


def reward(templates: list[str], difficulty: float) -> float:
    return float(difficulty < 0.2 + sum(gain for edit, gain in GAINS.items() if edit in "".join(templates)) - 1e-9)


def edit(template: str, seed: int) -> str:
    words = ["First list what is given.", "Be polite."] if template.startswith("Plan") else ["Check the result.", "Hm."]
    return f"{template}\n{random.Random(seed).choice(words)}"


async def fit(models: ToyModels, **options: Any) -> tuple[FitResult, APO]:
    @rollout
    async def agent(task: Any, resources: dict[str, Any]) -> float:
        plan = resources["plan"].format(question=task["question"])
        assert resources["answer"].format(question=task["question"], plan=plan)
        return reward([prompt.template for prompt in resources.values()], task["difficulty"])

    async with models.client() as client:
        algorithm = APO(client, **{**OPTIONS, "beam_rounds": 2, **options})
        trainer = Trainer(algorithm=algorithm, n_runners=4, initial_resources=RESOURCES)
        return await trainer.fit_async(agent, TRAIN, val_dataset=VAL), algorithm


@pytest.fixture(autouse=True)
def edited_by_lot(models: ToyModels) -> None:
    models.edit = edit


async def test_both_prompts_get_better(models: ToyModels) -> None:
    result, algorithm = await fit(models)
    assert result.metrics["val_gain"] > 0
    assert "First list what is given." in algorithm.get_best_prompt("plan").template
    assert "Check the result." in algorithm.get_best_prompt("answer").template
    assert algorithm.get_best_prompt("answer").engine == "jinja"
    assert result.best_resources is not None
    assert list(result.best_resources) == ["plan", "answer"]


async def test_each_round_edits_one_prompt_and_each_prompt_has_all_of_its_rounds(models: ToyModels) -> None:
    result, algorithm = await fit(models)
    for candidate in algorithm.get_result().history[1:]:
        parent = algorithm.get_result().history[candidate.parent or 0]
        changed = [name for name in RESOURCES if candidate.texts[name] != parent.texts[name]]
        assert changed == [["plan", "answer"][(candidate.round_number - 1) % 2]]
    assert {candidate.round_number for candidate in algorithm.get_result().history} == {0, 1, 2, 3, 4}
    assert [result.metrics["critic_calls"], result.metrics["editor_calls"]] == [4 * 2, 4 * 6]


async def test_models_see_the_prompt_that_is_edited_and_the_others_beside_it(models: ToyModels) -> None:
    await fit(models)
    critique = next(text for text in models.texts("critic") if ANSWER in TEMPLATE.findall(text))
    assert TEMPLATE.findall(critique) == [ANSWER]
    assert critique.count(ANSWER) == 1
    assert "{{ plan }}, {{ question }}" in critique
    assert f"a template named plan, which stays as it is for now:\n\n{PLAN}" in critique
    request = next(text for text in models.texts("editor") if ANSWER in TEMPLATE.findall(text))
    assert TEMPLATE.findall(request) == [ANSWER]
    assert request.count(ANSWER) == 1
    assert len(CRITIQUE.findall(request)) == 1
    assert PLAN in request
    assert "It is a Jinja template." in request


async def test_an_edit_that_breaks_its_prompt_is_rejected_with_the_reason(models: ToyModels) -> None:
    models.edit = lambda template, seed: template.replace("{{ plan }}", "the plan")
    result, algorithm = await fit(models, beam_rounds=1)
    assert result.metrics["rejected"] == 6
    assert algorithm.get_result().rejections == {"placeholder 'plan' is missing": 6}
    assert algorithm.get_best_prompt("answer").template == ANSWER


async def test_named_prompts_are_improved_and_the_others_stay(models: ToyModels) -> None:
    result, algorithm = await fit(models, prompt_names=["answer"])
    assert result.best_resources is not None
    assert result.best_resources["plan"] == RESOURCES["plan"]
    assert "Check the result." in algorithm.get_best_prompt().template
    assert algorithm.get_best_prompt().template == algorithm.get_best_prompt("answer").template


async def test_which_of_several_prompts_is_meant_has_to_be_said(models: ToyModels) -> None:
    _, algorithm = await fit(models, beam_rounds=1)
    with pytest.raises(AlgorithmError, match=r"no name was given; the prompts that are improved are 'plan', 'answer'"):
        algorithm.get_best_prompt()
    with pytest.raises(AlgorithmError, match="there is no prompt 'plam'"):
        algorithm.get_best_prompt("plam")


async def test_a_name_that_is_no_prompt_is_refused(models: ToyModels) -> None:
    with pytest.raises(
        AlgorithmError, match=r"prompt_names has 'anser', which is not a prompt .* have 'plan', 'answer'"
    ):
        await fit(models, prompt_names=["anser"])
