"""The example as a person runs it, and what it is made of."""

import os
import shutil
import sys
from pathlib import Path

import pytest
from check_solution import passes
from coding_endpoint import answer
from local_endpoint import ChatMessage, ChatRequest, serve
from python_functions import FUNCTIONS, TEST, TRAIN, VAL
from simulated_programmer import CALL
from training_rows import rows_of

from lightning_core.config import load_job

FOLDER = Path(__file__).parent
SMOLAGENT = Path(sys.executable).with_name("smolagent")
PROMPT = "{}\nSave it in the file solution.py."


def ask(*said: str) -> str:
    roles = ("user", "assistant")
    messages = [ChatMessage(role=roles[number % 2], content=text) for number, text in enumerate(said)]
    return answer(ChatRequest(model="programmer", messages=messages))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_right_function_passes_and_the_careless_one_does_not(name: str, tmp_path: Path) -> None:
    function = FUNCTIONS[name]
    for source, is_right in ((function.right, True), (function.careless, False)):
        (tmp_path / "solution.py").write_text(source, encoding="utf-8")
        assert passes(tmp_path / "solution.py", function.checks) is is_right


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_calls_in_a_description_show_what_is_careless(name: str, tmp_path: Path) -> None:
    function = FUNCTIONS[name]
    shown = dict(CALL.findall(function.description))
    assert shown == {call: repr(value) for call, value in list(function.checks.items())[:2]}
    (tmp_path / "solution.py").write_text(function.careless, encoding="utf-8")
    assert not passes(tmp_path / "solution.py", {call: function.checks[call] for call in shown})


def test_a_solution_that_is_not_there_does_not_pass(tmp_path: Path) -> None:
    assert not passes(tmp_path / "solution.py", {"1 + 1": 2})


def test_no_function_is_in_two_datasets() -> None:
    names = [task["function"] for task in (*TRAIN, *VAL, *TEST)]
    assert sorted(names) == sorted(FUNCTIONS)


def test_what_the_model_is_told_changes_how_often_it_is_right_at_once() -> None:
    def right(advice: str) -> int:
        prompts = [f"{PROMPT.format(function.description)}\n{advice}" for function in FUNCTIONS.values()]
        written = zip(prompts, FUNCTIONS.values(), strict=True)
        return sum(repr(function.right) in ask(prompt) for prompt, function in written)

    assert right("Read every sentence of the description.") > right("Be polite.") >= right("Be quick.")


def test_the_model_mends_what_it_sees_to_be_wrong_and_leaves_what_is_right() -> None:
    function = FUNCTIONS["unique"]
    first = PROMPT.format(function.description) + "\nCheck that the examples give what they should."
    draft = ask(first)
    assert "solution.py" in draft
    assert "final_answer" not in draft
    mended = ask(first, draft, "Observation:\ngives [1, 3] and should give [3, 1]\n")
    assert repr(function.right) in mended
    assert "write_text" not in ask(first, draft, "Observation:\ngives [3, 1] and should give [3, 1]\n")


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.skipif(not SMOLAGENT.exists(), reason="smolagents is not installed here")
async def test_the_search_finds_a_better_prompt_and_each_rollout_leaves_one_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{SMOLAGENT.parent}:{os.environ['PATH']}")
    folder = tmp_path / "examples" / "coding_agent"
    shutil.copytree(FOLDER, folder, ignore=shutil.ignore_patterns("test_*.py", "__pycache__"))
    config = folder / "config.yaml"
    async with serve(answer) as url:
        text = config.read_text(encoding="utf-8")
        assert "http://127.0.0.1:8765/v1" in text
        config.write_text(text.replace("http://127.0.0.1:8765/v1", url), encoding="utf-8")
        fewer = ["algorithm.val_batch_size=2", "algorithm.branch_factor=1", "test_dataset=null"]
        job = load_job(config, overrides=fewer, run_dir=tmp_path / "runs")
        result = await job.trainer.fit_async(job.agent, job.train_dataset, val_dataset=job.val_dataset)

    await job.trainer.store.aclose()

    assert result.status == "succeeded"
    assert result.rollouts.failed == 0
    assert result.metrics["val_reward"] > result.metrics["val_reward_initial"]
    [run] = (tmp_path / "runs").iterdir()
    found = [rows async for _, rows in rows_of(run)]
    assert len(found) == result.rollouts.succeeded
    assert [rows.refused for rows in found] == [()] * len(found)
    assert {len(rows.rows) for rows in found} == {1}
    assert {rows.final_reward for rows in found} == {0.0, 1.0}
    assert {len(rows.rows[0].calls) for rows in found} == {1, 2}
