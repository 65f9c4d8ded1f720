"""The requests to the models can be replaced."""

from typing import Any

import pytest
from lightning_apo import APO
from toy_models import ToyModels
from toy_run import ToyRun, fit

from lightning_core.errors import AlgorithmError

SHOWN = "<prompt_template>\n{{ prompt.template }}\n</prompt_template>"


async def test_a_critic_template_of_ones_own_is_used(models: ToyModels) -> None:
    template = "Kritisiere: " + SHOWN + "{% for each in experiments %} {{ each.reward }}{% endfor %}"
    await fit(ToyRun(), models, beam_rounds=1, critic_template=template)
    begin = "Kritisiere: <prompt_template>\nAnswer the question."
    assert all(text.startswith(begin) for text in models.texts("critic"))
    assert all(text.startswith("You improve") for text in models.texts("editor"))


async def test_an_editor_template_of_ones_own_is_used(models: ToyModels) -> None:
    template = "Ändere " + SHOWN + " {{ critique | without_marks }}"
    await fit(ToyRun(), models, beam_rounds=1, editor_template=template)
    assert all(text.startswith("Ändere") for text in models.texts("editor"))


@pytest.mark.parametrize(
    ("option", "template", "message"),
    [
        ("critic_template", "{% for x in", r"critic_template is a broken jinja template, line 1: TemplateSyntaxError"),
        ("critic_template", SHOWN + "{{ promt }}", r"uses 'promt', which it is not given; it is given 'prompt'"),
        ("critic_template", "What is wrong? {{ experiments }}", "critic_template does not show 'prompt', which"),
        ("editor_template", "{{ prompt.template }} {{ prompt.name }}", "editor_template does not show 'critique'"),
        ("editor_template", "editor.jinja", "editor_template does not show 'prompt'"),
    ],
)
def test_a_broken_template_fails_at_once(option: str, template: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        APO(**{option: template})


@pytest.mark.parametrize(
    ("fails", "message"),
    [
        ("{{ 1 / (experiments[0].reward * 0) }}", "ZeroDivisionError: .*runs of the agent"),
        ("{{ experiments[0].text }}", "UndefinedError: .*no attribute 'text'"),
        ("{{ prompt.__class__.__mro__ }}", "SecurityError|UndefinedError"),
    ],
)
async def test_a_template_that_fails_with_runs_of_the_agent_is_named(
    models: ToyModels, fails: str, message: str
) -> None:
    with pytest.raises(AlgorithmError, match=f"critic_template is a broken jinja template: ({message})"):
        await fit(ToyRun(), models, critic_template=SHOWN + fails)
