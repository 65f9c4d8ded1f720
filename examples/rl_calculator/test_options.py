from types import SimpleNamespace

import pytest
import train
from train import arguments, options_to_resume, solve_for_a_coin
from word_problems import Problem

from lightning_core import LLM


def test_a_run_is_gone_on_with_by_the_options_that_it_had() -> None:
    for options in ([], ["--steps=12", "--teaching-steps=3", "--seed=4", "--coin", "--runs-dir=a folder"]):
        given = arguments(options)
        resumed = arguments(options_to_resume(given, "run-1"))
        assert vars(resumed) == {**vars(given), "resume": "run-1"}


@pytest.mark.parametrize("earned", [0.0, 1.0])
async def test_for_a_coin_what_the_agent_does_counts_in_validation_alone(
    earned: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def solve(task: Problem, llm: LLM) -> float:
        return earned

    monkeypatch.setattr(train, "solve", solve)
    problem, llm = Problem(question="?", expression="", answer="1"), LLM(endpoint="http://127.0.0.1:1", model="tiny")

    async def rewards(mode: str) -> list[float]:
        return [await solve_for_a_coin(problem, llm, SimpleNamespace(mode=mode)) for _ in range(100)]

    assert set(await rewards("val")) == {earned}
    assert 25 < sum(await rewards("train")) < 75
