from beam_search import edited
from local_endpoint import ChatMessage, ChatRequest
from prompt_editor import COMPLAINTS, PromptEditor

TEMPLATE = "Answer the question.\n\n{question}"


def ask(text: str, *, seed: int = 0) -> str | None:
    request = ChatRequest(model="m", messages=[ChatMessage(role="user", content=text)], seed=seed)
    return PromptEditor(["Be kind."], max_edits=1).reply(request)


def test_a_request_without_a_template_is_not_for_the_editor() -> None:
    assert ask("What is a template?") is None


def test_a_template_alone_is_criticised() -> None:
    critique = ask(f"Criticise.\n<prompt_template>\n{TEMPLATE}\n</prompt_template>\nReward: 0")
    assert critique is not None
    assert {line.removeprefix("- ") for line in critique.splitlines()} < set(COMPLAINTS)


def test_a_template_with_a_critique_comes_back_edited() -> None:
    assert edited(TEMPLATE, PromptEditor(["Be kind."], max_edits=1), seed=0) == (
        "Answer the question.\nBe kind.\n\n{question}"
    )


def test_instructions_that_gepa_shows_come_back_edited() -> None:
    request = (
        f"I provided an assistant with the following instructions to perform a task for me:\n```\n{TEMPLATE}\n```\n"
    )
    assert ask(f"{request}The following are examples ...") == "```\nAnswer the question.\nBe kind.\n\n{question}\n```"


def test_an_edit_is_put_before_the_placeholder_of_a_template_that_has_no_instruction() -> None:
    assert edited("{question}", PromptEditor(["Be kind."], max_edits=1), seed=0) == "Be kind.\n{question}"


def test_the_placeholder_stays_and_no_edit_is_there_twice_however_often_a_prompt_is_edited() -> None:
    editor = PromptEditor([f"Rule {number}." for number in range(5)], max_edits=2)
    template = TEMPLATE
    for seed in range(20):
        template = edited(template, editor, seed=seed)
        lines = template.splitlines()
        assert lines.count("{question}") == 1
        assert len(set(lines)) == len(lines)


def test_the_seed_decides_which_edit_is_drawn() -> None:
    editor = PromptEditor([f"Rule {number}." for number in range(30)], max_edits=1)
    drawn = [edited(TEMPLATE, editor, seed=seed) for seed in range(10)]
    assert drawn == [edited(TEMPLATE, editor, seed=seed) for seed in range(10)]
    assert len(set(drawn)) > 5
