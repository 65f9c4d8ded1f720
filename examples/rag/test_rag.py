"""The agent that searches pages, with the played model."""

from collections.abc import Callable
from pathlib import Path

import pytest
import rag_agent
from corpus import FOLDER, index, read_passages
from local_endpoint import ChatMessage, ChatRequest, ToolCall, serve
from questions import QUESTIONS, same_answer
from rag_model import answer
from whole_run import run

from lightning_core import NamedResources, PromptTemplate, Trainer

pytestmark = pytest.mark.timeout(300)
ASKED = "Search before you answer: search for the whole question. Reply with the answer alone."


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: str(question["question"]))
def test_every_answer_stands_in_the_pages(question: dict[str, str]) -> None:
    assert any(question["answer"] in passage for passage in read_passages(FOLDER))


def test_the_index_finds_by_a_question_what_three_of_its_words_do_not() -> None:
    def found(words: int | None) -> int:
        queries = [(" ".join(each["question"].split()[:words]), each["answer"]) for each in QUESTIONS]
        return sum(any(right in passage for passage in index().search(query, 2)) for query, right in queries)

    assert found(None) >= 0.85 * len(QUESTIONS)
    assert found(3) <= 0.6 * len(QUESTIONS)


def test_a_folder_without_pages_is_an_error_before_anything_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AGL_RAG_CORPUS", str(tmp_path))
    config = Path(__file__).with_name("config.yaml")
    printed = run("-m", "lightning_core", "train", str(config), runs=tmp_path, status=2)
    assert f"there are no Markdown pages in {tmp_path}; AGL_RAG_CORPUS names a folder that has some" in printed


async def test_a_tool_that_does_not_exist_is_worth_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serve(lambda _: [ToolCall("browse", {})]) as url:
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        monkeypatch.setenv("OPENAI_API_KEY", "none")
        resources: NamedResources = {"prompt_template": PromptTemplate(template="{question}")}
        trainer = Trainer(algorithm="baseline", initial_resources=resources)
        result = await trainer.fit_async(rag_agent.answer, [dict(QUESTIONS[0])])
    assert result.metrics["train_reward"] == 0.0


@pytest.mark.parametrize(
    ("said", "right", "is_same"),
    [
        ("The OpenTelemetry context.", "OpenTelemetry context", True),
        ('`durability="power"`', 'durability="power"', True),
        ("2000", "200", False),
        ("It is 200", "200", False),
        ("", "200", False),
    ],
)
def test_an_answer_is_compared_but_for_case_articles_and_punctuation(said: str, right: str, is_same: bool) -> None:
    assert same_answer(said, right) == is_same


def test_the_played_model_answers_only_what_was_found() -> None:
    for each in QUESTIONS:
        asked = ChatMessage(role="user", content=f"{ASKED}\n\n{each['question']}")
        searched = answer(ChatRequest(model="m", messages=[asked]))
        if not isinstance(searched, str):
            assert [type(call) for call in searched] == [ToolCall]
        nothing = ChatMessage(role="tool", content="Nothing about that.")
        replies = answer(ChatRequest(model="m", messages=[asked, nothing, nothing]))
        assert replies == "The passages do not say."


def test_apo_runs_and_says_what_is_played(run_python: Callable[..., str]) -> None:
    small = ("beam_rounds=1", "branch_factor=1", "beam_width=1", "val_batch_size=6", "gradient_batch_size=2")
    options = [each for option in small for each in ("--set", f"algorithm.{option}")]
    printed = run_python("-m", "lightning_core", "train", "config.yaml", *options)
    assert "PLAYED model" in printed
    assert "rollouts succeeded" in printed
    assert "failed" not in printed
    assert "editor_calls: 1" in printed
