"""`agl check`, and what a dry run says of a grader."""

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from lightning_core.cli import agl

GRADERS = """
import random

def exact(task, result): return float(result == task["answer"])
def lenient(task, result): return 1.0 if result else 0.0
def strict(task, result): return 0.4 * (result == task["answer"])
def parsed(task, result): return float(int(result) == int(task["answer"]))
def random_one(task, result): return random.random() / 20 + 0.9 * (result == task["answer"])
def large(task, result): return 3.0 * (result == task["answer"])
def judged(task, result, llm): return 1.0
def solve(task): return task["answer"]
"""
CONFIG = """
agent: check_agent:agent
algorithm: baseline
train_dataset: [{question: 1 + 1, answer: "2"}, {question: 1 + 2, answer: "3"}]
reward: check_graders:
"""


pytestmark = pytest.mark.usefixtures("own_folder")


def run(folder: Path, grader: str, *options: str, command: str = "check", config: str = CONFIG) -> Result:
    (folder / "check_graders.py").write_text(GRADERS)
    (folder / "check_agent.py").write_text("from lightning_core import rollout\nfrom check_graders import solve\n")
    with (folder / "check_agent.py").open("a") as file:
        file.write("agent = rollout(solve)\n")
    path = folder / "config.yaml"
    path.write_text(config.rstrip() + (grader if config is CONFIG else "") + "\n")
    return CliRunner().invoke(agl, [command, str(path), *options])


@pytest.mark.parametrize(
    ("grader", "said"),
    [
        ("lenient", "2 of 2 samples  pays 1 for 'foo'"),
        ("strict", "2 of 2 samples  gives 0.4 for the reference"),
        ("parsed", "2 of 2 samples  raises ValueError on '': invalid literal for int()"),
        ("random_one", "2 of 2 samples  differs from call to call: "),
        ("large", "2 of 2 samples  gives 3 for the reference, which is not from 0 to 1"),
    ],
)
def test_what_is_wrong_with_a_grader_is_said_and_the_status_is_1(grader: str, said: str, tmp_path: Path) -> None:
    done = run(tmp_path, grader)

    assert done.exit_code == 1, done.output
    assert said in done.output


def test_a_good_grader_passes(tmp_path: Path) -> None:
    done = run(tmp_path, "exact")

    assert (done.exit_code, done.output) == (0, "nothing wrong on 2 samples\n")


def test_the_range_of_rewards_can_be_said(tmp_path: Path) -> None:
    assert run(tmp_path, "large", "--range", "0", "3").exit_code == 0
    refused = run(tmp_path, "large", "--range", "3", "0")
    assert (refused.exit_code, "3 0 is no range; the lowest reward comes first" in refused.stderr) == (2, True)


def test_without_a_right_answer_the_rest_is_checked_and_said(tmp_path: Path) -> None:
    done = run(tmp_path, "exact", "--reference", "solution")

    assert done.exit_code == 0
    assert "the right answer is known for 0: name its field with --reference" in done.output


@pytest.mark.parametrize(
    ("grader", "options", "said"),
    [
        ("null", ["--set", "reward=null"], "its agent returns the reward; name a grader under 'reward'"),
        ("judged", [], "grader judged asks a model, which only a run has; take agl judge-check for it"),
        ("exact", ["--on", "test"], "has no test_dataset to try it on"),
    ],
)
def test_what_cannot_be_checked_is_refused(grader: str, options: list[str], said: str, tmp_path: Path) -> None:
    done = run(tmp_path, grader, *options)

    assert done.exit_code == 2
    assert said in done.output


def test_a_dry_run_warns_of_a_grader_that_pays_for_nonsense(tmp_path: Path) -> None:
    done = run(tmp_path, "lenient", "--dry-run", command="train")

    assert done.exit_code == 0
    assert "Warning: the grader pays 1 for 'foo' (2 of 2); try agl check" in done.output
