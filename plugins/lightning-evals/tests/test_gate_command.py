"""`agl gate`: its exit status, JSON and Markdown."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from lightning_evals.evaluation import FILE

from lightning_core.cli import agl
from lightning_core.runs.folder import runs_in

AGENT = """
from lightning_core import rollout

SAMPLES = list(range(40))

@rollout
async def solve(task, prompt_template):
    return float(task % 10 < int(prompt_template.template))
"""
CONFIG = """
agent: gated_agent:solve
algorithm: apo
initial_resources:
  main_prompt: {resource_type: prompt_template, template: "9"}
test_dataset: gated_agent:SAMPLES
"""

Agl = Callable[..., Result]


@pytest.fixture
def run(own_folder: Path, runs_dir: Path) -> Agl:
    (own_folder / "gated_agent.py").write_text(AGENT)
    (own_folder / "config.yaml").write_text(CONFIG)
    return lambda command, *arguments: CliRunner().invoke(agl, [command, "config.yaml", *arguments])


@pytest.fixture
def baseline(run: Agl, runs_dir: Path) -> str:
    ended = run("eval")
    assert ended.exit_code == 0, ended.output
    (found,) = runs_in(runs_dir)
    return found.run_id


@pytest.mark.parametrize(
    ("prompt", "max_drop", "status", "outcome"),
    [(9, 0.3, 0, "passed"), (0, 0.02, 1, "worse"), (9, 0.02, 4, "undecided")],
)
def test_the_exit_status_is_the_outcome(
    run: Agl, baseline: str, prompt: int, max_drop: float, status: int, outcome: str
) -> None:
    files = ["--markdown", "gate.md", "-o", "result.json"]
    prompt_set = f"initial_resources.main_prompt.template='{prompt}'"
    ended = run("gate", "--baseline", baseline, "--max-drop", str(max_drop), "--set", prompt_set, *files)
    assert ended.exit_code == status, ended.output
    assert f"### Gate: {outcome}" in ended.stdout
    assert Path("gate.md").read_text() in ended.stdout
    Path("plain").touch()
    assert Path("gate.md").stat().st_mode == Path("plain").stat().st_mode
    assert "reward_change_low" in json.loads(Path("result.json").read_text())["metrics"]


def test_a_file_is_a_baseline_and_programs_get_an_event(run: Agl, baseline: str, runs_dir: Path) -> None:
    (runs_dir / baseline / FILE).rename("baseline.json")
    ended = run("gate", "--baseline", "baseline.json", "--max-drop", "0.3", "--json")
    assert ended.exit_code == 0, ended.output
    event = json.loads(ended.stdout.splitlines()[-1])
    assert (event["event"], event["outcome"], event["lost"]) == ("gate", "passed", 0)
    assert (event["baseline"], event["max_drop"]) == (baseline, 0.3)
    refused = run("gate", "--baseline", baseline)
    assert refused.exit_code == 2
    assert "is a run without an evaluation.json; name a run of agl eval" in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--baseline", "run-none"], "no run 'run-none'"),
        (["--baseline", "config.yaml"], "config.yaml is not an evaluation"),
        ([], "Missing option '--baseline'"),
        (["--baseline", "baseline.json", "--max-drop", "-1"], "Invalid value for '--max-drop'"),
    ],
)
def test_what_cannot_be_is_one_error(run: Agl, arguments: list[str], words: str) -> None:
    ended = run("gate", *arguments)
    assert ended.exit_code in (1, 2)
    assert words in ended.stderr
    assert ended.stderr.count("Error") == 1
