"""Tasks of harbor, with a program in its place that leaves trials as harbor's do."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from lightning_environments.harbor import Harbor, outcome_of

from lightning_core import LLM, Trainer
from lightning_core.errors import ConfigError, NoRewards

TRIAL = {
    "id": "0d3c2f1e-5b6a-4c7d-8e9f-0a1b2c3d4e5f",
    "task_name": "hello-world",
    "trial_name": "hello-world__abc1234",
    "trial_uri": "file:///jobs/hello-world__abc1234",
    "task_id": {"path": "tasks/hello-world"},
    "task_checksum": "c0ffee",
    "config": {"task": {"path": "tasks/hello-world"}, "trial_name": "hello-world__abc1234"},
    "agent_info": {"name": "terminus-2", "version": "2.0.0", "model_info": {"name": "m", "provider": "openai"}},
    "agent_result": {"n_input_tokens": 100, "n_output_tokens": 20, "cost_usd": None},
    "verifier_result": {"rewards": {"reward": 1.0}},
    "exception_info": None,
    "started_at": "2026-11-20T09:00:00Z",
    "finished_at": "2026-11-20T09:00:30Z",
    "step_results": None,
}
STAND_IN = """#!{python}
import json, os, sys
from pathlib import Path

options = dict(zip(sys.argv[2::2], sys.argv[3::2]))
assert sys.argv[1] == "run" and options["--model"] == "openai/m", sys.argv
assert options["--base-url"] == "http://127.0.0.1:9/v1"
found = Path(options["--path"], "trial.json").read_text()
folder = Path(options["--jobs-dir"], "2026-11-20__09-00-00", "trial")
folder.mkdir(parents=True)
(folder.parent / "result.json").write_text(json.dumps({{"id": "job", "n_total_trials": 1}}))
if found != "none":
    (folder / "result.json").write_text(found)
"""


def raised(kind: str, **more: Any) -> dict[str, Any]:
    told = {"exception_type": kind, "exception_message": "no luck", "exception_traceback": "", "occurred_at": "2026"}
    return {**TRIAL, "verifier_result": None, "exception_info": told, **more}


def tasks_in(folder: Path, *trials: Any) -> Harbor:
    program = folder / "harbor"
    program.write_text(STAND_IN.format(python=sys.executable))
    program.chmod(0o755)
    for number, trial in enumerate(trials):
        task = folder / "tasks" / f"task-{number}"
        task.mkdir(parents=True)
        (task / "task.toml").write_text('version = "1.0"\n')
        (task / "trial.json").write_text(trial if isinstance(trial, str) else json.dumps(trial))
    return Harbor(str(folder / "tasks"), sandbox="daytona", harbor=str(program))


def run(environment: Harbor) -> Any:
    trainer = Trainer(
        algorithm="baseline", initial_resources={"main_llm": LLM(endpoint="http://127.0.0.1:9/v1", model="m")}
    )
    return trainer.fit(environment.agent(), list(environment.tasks(10)))


def test_a_folder_is_a_task_and_the_verifiers_result_the_reward(tmp_path: Path) -> None:
    half = {**TRIAL, "verifier_result": {"rewards": {"reward": 0.5, "tests": 3}}}

    assert run(tasks_in(tmp_path, TRIAL, half)).metrics["train_reward"] == pytest.approx(0.75)


@pytest.mark.parametrize("trial", [raised("DockerRateLimitError"), "none", {**TRIAL, "verifier_result": None}])
def test_what_the_infrastructure_broke_is_a_fault_and_not_a_reward(trial: Any, tmp_path: Path) -> None:
    with pytest.raises(NoRewards, match="4 faults, none of which is the agent's failure"):
        run(tasks_in(tmp_path, trial))


def test_an_exception_of_the_agent_is_its_failure_or_what_the_verifier_says() -> None:
    assert outcome_of(raised("AgentTimeoutError")) == (1, "AgentTimeoutError: no luck")
    scored = raised("AgentTimeoutError", verifier_result={"rewards": {"reward": 0.0}})
    assert outcome_of(scored) == (0, {"reward": 0.0})
    step = {**TRIAL, "step_results": [{"step_name": "a", "exception_info": raised("X")["exception_info"]}]}
    assert outcome_of(step) == (75, "X: no luck")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"harbor": "no-such-harbor"}, r"there is no such program; harbor needs Python 3\.12 or newer"),
        ({"sandbox": "docker", "harbor": "sh"}, "sandbox is 'docker', and there is no docker here; start it"),
        ({"path": "/nowhere"}, "no folder has a task.toml"),
    ],
)
def test_what_is_missing_is_said_with_what_to_do(
    options: dict[str, str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks_in(tmp_path, TRIAL)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "sh").symlink_to("/bin/sh")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with pytest.raises(ConfigError, match=words):
        Harbor(**{"path": str(tmp_path / "tasks"), **options})
