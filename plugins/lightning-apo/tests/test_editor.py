import pytest
from lightning_apo.models import unwrapped, why_unusable

from lightning_core.types import PromptTemplate

PARENT = PromptTemplate(template="Answer {question} in {language}.")


@pytest.mark.parametrize(
    ("answer", "template"),
    [
        ("  Answer {q}.\n\n", "Answer {q}."),
        ("```\nAnswer {q}.\n```", "Answer {q}."),
        ("\n```text\nAnswer\n\n{q}.\n```\n", "Answer\n\n{q}."),
        ("````\nAnswer\n```\n{q}\n```\n````", "Answer\n```\n{q}\n```"),
        ("```\na\n```\nAnswer {q}.\n```\nb\n```", "```\na\n```\nAnswer {q}.\n```\nb\n```"),
        ("<prompt_template>\nAnswer {q}.\n</prompt_template>", "Answer {q}."),
        ("```\n```", "```\n```"),
    ],
)
def test_what_models_put_around_a_template_is_taken_off(answer: str, template: str) -> None:
    assert unwrapped(answer) == template


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "empty"),
        ("Answer {question} in {language", "malformed"),
        ("Answer {question.text} in {language}.", "plain name"),
        ("Answer {question}.", "placeholder 'language' is missing"),
        ("Answer {question} in {language} as {role}.", "placeholder 'role' is new"),
        ("Answer {question} in {language}. </prompt_template>", "'</prompt_template>'"),
        ("<critique> {question} {language}", "'<critique>'"),
    ],
)
def test_a_broken_edit_is_rejected_with_the_reason(text: str, reason: str) -> None:
    assert reason in str(why_unusable(text, PARENT))


def test_an_edit_with_the_placeholders_of_its_parent_is_usable() -> None:
    assert why_unusable("In {language}, please: {question} {{literally}}", PARENT) is None


def test_an_edit_is_judged_by_the_engine_of_its_parent() -> None:
    parent = PromptTemplate(template="Answer {{ question }}.", engine="jinja")
    assert why_unusable('Answer {{ question }} as {"json": true}.', parent) is None
    assert "placeholder 'question' is missing" in str(why_unusable("Answer {question}.", parent))
    assert "malformed jinja template" in str(why_unusable("Answer {{ question }.", parent))
