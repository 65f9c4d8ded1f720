"""`agl eval`: how good an agent is with given prompts."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from lightning_evals.evaluation import FILE, Evaluation

from lightning_core.cli import agl
from lightning_core.runs.folder import RunFolder, runs_in

AGENT = """
from lightning_core import rollout

@rollout
async def solve(task, prompt_template):
    if task == "broken":
        raise ValueError("no answer")
    return float(str(task) in prompt_template.template)
"""
CONFIG = """
agent: evaluated_agent:solve
algorithm: apo
initial_resources:
  main_prompt: {resource_type: prompt_template, template: "knows: one"}
train_dataset: [one]
val_dataset: [one, two]
test_dataset: [one, two, three, broken]
"""

Agl = Callable[..., Result]


@pytest.fixture
def agl_eval(own_folder: Path, runs_dir: Path) -> Agl:
    (own_folder / "evaluated_agent.py").write_text(AGENT)
    (own_folder / "config.yaml").write_text(CONFIG)
    return lambda *arguments: CliRunner().invoke(agl, ["eval", "config.yaml", *arguments])


def only_run(root: Path) -> RunFolder:
    (run,) = runs_in(root)
    return run


def test_it_evaluates_on_the_held_out_samples_and_keeps_a_run(agl_eval: Agl, runs_dir: Path) -> None:
    ended = agl_eval("--repeat", "2")
    assert ended.exit_code == 0, ended.output
    assert "reward on held-out samples: 0.33 (95% 0.06..0.79, n=3, 1 lost)" in ended.stdout
    assert "pass@1: 0.25 [0.046..0.699]" in ended.stdout
    assert "pass^2: 0.25 [0.046..0.699]" in ended.stdout
    assert "failed 2x: ValueError: no answer" in ended.stdout
    run = only_run(runs_dir)
    assert run.manifest().algorithm == "evaluate"
    kept = Evaluation.read(run.path / FILE)
    assert [each.reward for each in kept.samples] == [1.0, 0.0, 0.0, None]
    assert kept.run_id == run.run_id


@pytest.mark.parametrize(
    ("arguments", "rewards"),
    [
        (["--on", "val"], [1.0, 0.0]),
        (["--on", "test", "--samples", "3"], [1.0, 0.0, 0.0]),
        (["--set", "test_dataset=null"], [1.0, 0.0]),
        (["--set", "test_dataset=[two, one]"], [0.0, 1.0]),
    ],
)
def test_samples_are_chosen(agl_eval: Agl, runs_dir: Path, arguments: list[str], rewards: list[float]) -> None:
    ended = agl_eval(*arguments)
    assert ended.exit_code == 0, ended.output
    assert [each.reward for each in Evaluation.read(only_run(runs_dir).path / FILE).samples] == rewards


def test_the_best_prompts_of_a_run_are_evaluated(agl_eval: Agl, runs_dir: Path) -> None:
    best = {
        "main_prompt": {"resource_type": "prompt_template", "template": "knows: two, three – 🙂\n", "engine": "jinja"}
    }
    Path("best.json").write_text(json.dumps(best))
    first = agl_eval("--resources", "best.json", "-o", "result.json")
    assert first.exit_code == 0, first.output
    run = only_run(runs_dir)
    assert [each.reward for each in Evaluation.read(run.path / FILE).samples] == [0.0, 1.0, 1.0, None]
    for given in (run.run_id, "result.json"):
        ended = agl_eval("--resources", given, "--on", "val", "--json")
        assert ended.exit_code == 0, ended.output
        result = json.loads(ended.stdout.splitlines()[-1])
        assert result["best_resources"]["main_prompt"]["template"] == "knows: two, three – 🙂\n"
        assert result["metrics"]["val_reward"] == 0.5  # not of held-out samples


def test_an_interrupted_evaluation_can_be_resumed_as_it_is_kept(agl_eval: Agl, runs_dir: Path) -> None:
    assert agl_eval("--samples", "2").exit_code == 0
    overrides = only_run(runs_dir).manifest().origin.overrides
    assert "val_dataset=[one, two, three, broken]" in overrides
    assert any(each.startswith("algorithm={name: evaluate") for each in overrides)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["--on", "test", "--set", "test_dataset=null"],
            "config.yaml has no test_dataset; name samples to evaluate on",
        ),
        (["--resources", "run-none"], "no run 'run-none'"),
        (["--resources", "evaluated_agent.py"], "--resources: evaluated_agent.py: "),
        (["--resources", "wrong.yaml"], "--resources: main_prompt: "),
        (
            ["--resources", "misspelt.yaml"],
            "config.yaml has no prompt 'main_promt', so that it would change nothing; its prompts: main_prompt. Did",
        ),
        (["--pass-at", "nan"], "pass_at is nan; it is a reward, a finite number"),
        (["--model", "./trained"], "--model ./trained: there is no such folder, and it is no name at Hugging Face"),
        (["--", "--max-model-len", "99"], "--max-model-len 99 is about a model that vLLM serves; name it"),
        (["--set", "algorithm.arguments=[--max-model-len]"], "--set algorithm has no effect"),
        (["--repeat", "0"], "'--repeat': 0 is not in the range x>=1"),
    ],
)
def test_what_cannot_be_is_one_error(agl_eval: Agl, runs_dir: Path, arguments: list[str], words: str) -> None:
    Path("misspelt.yaml").write_text("main_promt: {resource_type: prompt_template, template: 'knows: two'}")
    Path("wrong.yaml").write_text("main_prompt: {resource_type: prompt, template: sk-secret}")
    ended = agl_eval(*arguments)
    assert ended.exit_code in (1, 2)
    assert "sk-secret" not in ended.stderr
    assert words in ended.stderr
    assert ended.stderr.count("Error") == 1
    assert not runs_in(runs_dir)
