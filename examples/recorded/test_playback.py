import os
from pathlib import Path
from statistics import mean

import pytest
import yaml
from general_edits import EDITS
from local_endpoint import ChatMessage, ChatRequest, serve
from openai import AsyncOpenAI, BadRequestError
from playback import answer, asks_to_reason, play_back
from question_agent import ask, grade
from recorded_data import Question, all_rows, held_out

recorded = pytest.mark.skipif(not os.environ.get("AGL_TEST_DATA"), reason="AGL_TEST_DATA is not set")
CONFIG = yaml.safe_load(Path(__file__).with_name("config.yaml").read_text(encoding="utf-8"))
FIRST: str = CONFIG["initial_resources"]["main_prompt"]["template"]


def accuracy(template: str, questions: list[Question]) -> float:
    def reply(question: Question) -> str:
        message = ChatMessage(role="user", content=template.replace("{question}", question["question"]))
        return play_back(ChatRequest(model="m", messages=[message]))

    return mean(grade(reply(question), question["target"])[0] for question in questions)


@pytest.mark.parametrize(
    ("instructions", "asks"),
    [
        ("Think step by step.", True),
        ("Explain your reasoning before you answer.", True),
        ("Reply with the option alone.\nShow your work.", True),
        ("Do not answer before you have gone over it. Reason carefully.", True),
        ("Never rush. Work it out before you answer.", True),
        ("", False),
        ("You are a helpful assistant.", False),
        ("Do not explain your answer.", False),
        ("Reply without any reasoning.", False),
        ("There is no need to think step by step.", False),
        ("Think step by step.\nReply with the answer only.", False),
        ("Think step by step, but reply with the option alone.", False),
    ],
)
def test_a_prompt_that_asks_for_reasoning_is_seen_and_one_that_forbids_it(instructions: str, asks: bool) -> None:
    assert asks_to_reason(instructions) == asks


def test_a_few_of_the_edits_ask_for_reasoning() -> None:
    assert 30 <= len(EDITS) <= 40
    assert len(set(EDITS)) == len(EDITS)
    assert 3 <= sum(asks_to_reason(edit) for edit in EDITS) <= 6
    assert not asks_to_reason(FIRST)


@recorded
async def test_the_recorded_answer_is_played_back_to_the_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    row = all_rows()[300]
    async with serve(answer) as url:
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        monkeypatch.setenv("OPENAI_API_KEY", "any")
        assert await ask(FIRST.format(question=row["question"])) == row["direct"]
        assert await ask("Think step by step.\n\n" + row["question"]) == row["step_by_step"]


@recorded
async def test_an_unknown_question_is_refused() -> None:
    async with serve(answer) as url, AsyncOpenAI(base_url=url, api_key="any") as client:
        with pytest.raises(BadRequestError, match="none of the recorded questions"):
            await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "Hello"}])


@recorded
def test_the_held_out_accuracies_are_those_of_the_recording() -> None:
    assert accuracy(FIRST, held_out()) == pytest.approx(0.38, abs=0.02)
    assert accuracy(f"Think step by step.\n{FIRST.splitlines()[-1]}", held_out()) == pytest.approx(0.78, abs=0.02)
