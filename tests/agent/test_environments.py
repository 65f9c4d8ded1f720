"""Environments: splits, and what an answer is worth."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given, strategies as st

from lightning_core import Environment, Fault, Trainer, environment, rollout
from lightning_core.agent import LitAgent
from lightning_core.agent.environments import SPLITS, Scoring, split_of, take
from lightning_core.agent.grader_check import candidate_of, check_grader
from lightning_core.cli import agl
from lightning_core.config import load_job
from lightning_core.errors import ConfigError, NoRewards
from lightning_core.testing import EnvironmentSuite


class Sums(Environment):
    """Adds one; the scorer reads a number, and the third question is asked twice."""

    def __init__(self, *, first: int = 0) -> None:
        self._first = first

    def tasks(self, count: int) -> Iterator[dict[str, int]]:
        for number in range(self._first, self._first + min(count, 120)):
            yield {"number": number}
            yield {"number": 3}

    def agent(self) -> LitAgent[Any]:
        @rollout
        async def answer(task: dict[str, int]) -> str:
            return str(task["number"] + 1)

        return answer

    def score(self, task: dict[str, int], answer: Any) -> float:
        return float(int(answer) == task["number"] + 1)

    def reference(self, task: dict[str, int]) -> str:
        return str(task["number"] + 1)


class TestSums(EnvironmentSuite):
    def make_environment(self) -> Sums:
        return Sums()


def test_fit_takes_what_an_environment_gives() -> None:
    agent, train, val, test = environment(Sums(), train=6, val=2, test=2)

    assert (
        Trainer(algorithm="baseline").fit(agent, train, val_dataset=val, test_dataset=test).metrics["val_reward"] == 1
    )


@given(st.lists(st.integers() | st.text(), max_size=30))
def test_a_question_is_in_the_same_split_whatever_comes_with_it(questions: list[Any]) -> None:
    class Given(Environment):
        def tasks(self, count: int) -> list[Any]:
            return questions

    for split in SPLITS:
        rows = take(Given(), {split: sum(split_of(each) == split for each in {repr(q): q for q in questions}.values())})
        assert all(split_of(row) == split for row in rows[split])


def test_too_few_tasks_are_an_error_with_their_number() -> None:
    with pytest.raises(ConfigError, match=r"size is 500, but Sums has only \d+ tasks for val among 120 different ones"):
        take(Sums(), {"val": 500})


class Broken(Sums):
    def set_up(self) -> None:
        raise RuntimeError("no licence")


class Remote(Sums):
    def score(self, task: dict[str, int], answer: Any) -> float:
        raise ConnectionRefusedError("nothing listens there")


class Generous(Sums):
    async def score(self, task: dict[str, int], answer: Any) -> float:  # type: ignore[override]
        return float(answer)


def test_a_scorer_that_raises_on_answers_gives_0_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    scoring = Scoring(Sums())
    with caplog.at_level(logging.WARNING):
        assert [scoring({"number": 1}, answer) for answer in ("two", "", "2")] == [0.0, 0.0, 1.0]
    assert [record.message.partition(":")[0] for record in caplog.records] == [
        "lightning.scorer_raised environment=Sums"
    ]


@pytest.mark.parametrize(
    ("kind", "words"), [(Broken, "cannot be set up: RuntimeError: no licence"), (Remote, "cannot reach what it needs")]
)
async def test_set_up_and_transport_are_faults_also_of_a_check(kind: type[Sums], words: str) -> None:
    async def check() -> None:
        candidate = candidate_of(kind(), None, None)
        assert candidate is not None
        await check_grader(candidate, [{"number": 1}])

    with pytest.raises(Fault, match=words):
        Scoring(kind())({"number": 1}, "2")
    with pytest.raises(Fault, match=words):
        await check()


class Forgetful(Sums):
    def score(self, task: dict[str, int], answer: Any) -> Any:
        return None


def test_a_scorer_that_forgets_to_return_is_told_what_a_reward_is(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    source = f"{{environment: '{__name__}:Forgetful', size: 1}}"
    path.write_text(f"agent: '{__name__}:always_four'\nalgorithm: baseline\nval_dataset: {source}\n")
    with pytest.raises(NoRewards, match="must be a number, got None"):
        load_job(path).fit()


async def test_a_reward_out_of_range_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    scoring = Scoring(Generous())
    with caplog.at_level(logging.WARNING):
        rewards = [await scoring({"number": 1}, answer) for answer in ("2", "3", "x")]  # type: ignore[misc]
    assert rewards == [2.0, 3.0, 0.0]
    assert [record.message.split()[0] for record in caplog.records] == [
        "lightning.reward_out_of_range",
        "lightning.scorer_raised",
    ]


def test_the_datasets_of_a_config_are_of_one_environment(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    source = f"{{environment: '{__name__}:Sums', size: 3"
    path.write_text(f"algorithm: baseline\ntrain_dataset: {source}}}\nval_dataset: {source}, first: 9}}\n")
    with pytest.raises(ConfigError, match=r"config\.yaml:3: val_dataset is of another environment than train_dataset"):
        load_job(path)


def test_init_takes_an_environment_of_one_s_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    done = CliRunner().invoke(agl, ["init", str(tmp_path), "--environment", f"{__name__}:Sums"])
    assert done.exit_code == 0, done.output

    path = tmp_path / "config.yaml"
    path.write_text(path.read_text().replace("size: 100", "size: 5").replace("size: 50", "size: 5"))
    assert len(load_job(path, dry_run=True).train_dataset or ()) == 5


def test_an_own_agent_is_scored_by_the_environment(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    source = f"{{environment: '{__name__}:Sums', size: 3}}"
    path.write_text(f"agent: '{__name__}:always_four'\nalgorithm: baseline\nval_dataset: {source}\n")
    job = load_job(path)

    metrics = job.fit().metrics

    rows = job.val_dataset or ()
    assert metrics["val_reward"] == pytest.approx(sum(rows[index]["number"] == 3 for index in range(3)) / 3)


@rollout
async def always_four(task: Any) -> str:
    return "4"


def test_what_an_environment_is_not_given_is_an_error_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("algorithm: baseline\ntrain_dataset: {environment: reasoning_gim, size: 3}\n")
    with pytest.raises(ConfigError, match=r"config\.yaml:2: train_dataset: no environment named 'reasoning_gim'"):
        load_job(path)
    path.write_text("algorithm: baseline\ntrain_dataset: [1]\n")
    with pytest.raises(ConfigError, match="the key 'agent' is missing"):
        load_job(path)
