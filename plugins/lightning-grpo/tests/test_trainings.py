"""Whole trainings on the processor, each in a process of its own."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning_tokens.testing import make_tiny_model

from lightning_core.runs.metrics import read_metrics

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_tiny_model(tmp_path_factory.mktemp("model")))


def train(
    model: str, options: dict[str, Any], *more: str, cwd: Path
) -> tuple[int, list[dict[str, Any]], dict[str, Any]]:
    """Run one; return its exit status, what it reported, and its result, empty when it was killed."""
    script = Path(__file__).with_name("letters.py")
    done = subprocess.run(
        [sys.executable, script, model, json.dumps(options), "--run", cwd / "runs", *more],
        cwd=cwd,
        env={**os.environ, "AGENT_LOG": str(cwd / "agents.txt")},
        capture_output=True,
        text=True,
        timeout=300,
    )
    told = [json.loads(line.split(" ", 1)[1]) for line in done.stderr.splitlines() if line.startswith("TOLD ")]
    ends = [json.loads(line.split(" ", 1)[1]) for line in done.stdout.splitlines() if line.startswith("END ")]
    if not ends and done.returncode >= 0 and "NoRewards" not in done.stderr:
        pytest.fail(done.stderr[-3000:])
    return done.returncode, told, ends[0] if ends else {}


def by_step(told: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    return {each["step"]: each for each in told if each["step"] is not None}


def runs_of_agents(cwd: Path) -> Counter[str]:
    return Counter((cwd / "agents.txt").read_text().split())


def test_killed_and_resumed_for_more_steps_it_comes_to_the_same_weights_and_runs_nothing_twice(
    model: str, tmp_path: Path
) -> None:
    options, more = {"steps": 5, "validate_every": 2}, ("--val-tasks", "3", "--test-tasks", "3")
    status, first, _ = train(model, options, *more, "--end-at", "3", "--end-by", "SIGKILL", cwd=tmp_path)
    assert status == -signal.SIGKILL
    before = runs_of_agents(tmp_path)
    killed = ("--end-at", "4", "--end-by", "SIGKILL", "--unwritten")
    status, second, _ = train(model, options, *more, *killed, cwd=tmp_path)
    assert (status, sorted(by_step(second))) == (-signal.SIGKILL, [2, 3, 4]), "from the checkpoint after step 2"
    _, third, resumed = train(model, {**options, "steps": 6}, *more, cwd=tmp_path)
    assert (resumed["status"], sorted(by_step(third))) == ("succeeded", [4, 5, 6]), "from the one after step 4"
    (file,) = tmp_path.glob("runs/*/metrics.jsonl")
    steps = [each.step for each in read_metrics(file) if each.step is not None]
    assert steps == [1, 2, 3, 4, 5, 6], "no line is lost or doubled"
    assert by_step(third)[4] == by_step(second)[4]
    for name in ("training/reward", "actor/grad_norm", "actor/pg_loss"):
        assert by_step(second)[3][name] == by_step(first)[3][name], "with the same rollouts and the same weights"
    is_tested = Path(resumed["best"]).name.startswith("step-")
    in_steps_and_validations, in_test = 3 * 16 + 2 * 3, 3 * is_tested
    assert (runs_of_agents(tmp_path) - before).total() == in_steps_and_validations + in_test, "step 3 had ended"
    assert resumed["comparison"][0] == "test"
    assert all(each["training/logprob_difference"] < 1e-5 for each in by_step(first + second + third).values())


def test_after_a_failure_it_goes_on_from_the_last_checkpoint(model: str, tmp_path: Path) -> None:
    options = {"steps": 3, "validate_every": 2}
    status, told, _ = train(model, options, "--end-at", "2", "--end-by", "outage", cwd=tmp_path)
    assert (status, sorted(by_step(told))) == (1, [1, 2])
    (tmp_path / "outage").unlink()
    _, told, end = train(model, options, cwd=tmp_path)
    assert (end["status"], sorted(by_step(told))) == ("succeeded", [2, 3])


def test_a_run_whose_folder_was_moved_keeps_its_best_weights(model: str, tmp_path: Path) -> None:
    options, more = {"steps": 3, "validate_every": 2}, ("--val-tasks", "3")
    train(model, options, *more, "--end-at", "3", "--end-by", "SIGKILL", cwd=tmp_path)
    (file,) = tmp_path.glob("runs/*/checkpoints/*/state.pt")
    state = torch.load(file, weights_only=True)
    torch.save(
        {**state, "best": (2, dict.fromkeys(range(3), 2.0), str(file.with_name("step-2")))}, file
    )  # no later one is better
    shutil.copytree(model, file.with_name("step-2"), dirs_exist_ok=True)
    (tmp_path / "runs").rename(tmp_path / "moved")
    _, _, end = train(model, options, *more, "--run", str(tmp_path / "moved"), cwd=tmp_path)
    assert end["best"] == str(tmp_path / "moved" / file.parent.relative_to(tmp_path / "runs") / "step-2")
    assert Path(end["best"], "config.json").is_file()


def test_interrupted_it_keeps_the_best_weights_and_the_comparison(model: str, tmp_path: Path) -> None:
    options = {"steps": 50, "validate_every": 1}
    _, told, end = train(model, options, "--val-tasks", "4", "--end-at", "4", "--end-by", "SIGINT", cwd=tmp_path)
    assert end["status"] == "interrupted"
    best = [each["best"] for each in told if each["best"]][-1]
    assert end["best"] == best
    assert Path(best, "config.json").is_file()
    mode, before, _ = end["comparison"]
    assert mode == "val"
    assert "n=4" in before


def budget(calls: int) -> tuple[str, str]:
    judge = {"model_name": "judge", "litellm_params": {"model": "openai/judge"}}
    return "--trainer", json.dumps({"budget": {"calls": calls}, "llm_proxy": {"model_list": [judge]}})


def test_a_budget_that_is_used_up_leaves_the_newest_model(model: str, tmp_path: Path) -> None:
    _, _, end = train(model, {"steps": 50}, *budget(80), cwd=tmp_path)
    assert end["status"] == "budget"
    assert Path(end["best"]).name == "step-2", "two steps of 32 calls"
    assert Path(end["best"], "tokenizer.json").is_file()


def test_a_validation_in_which_the_budget_ended_is_done_when_the_run_goes_on(model: str, tmp_path: Path) -> None:
    def with_budget(calls: int) -> dict[Any, Any]:
        options = {"steps": 2, "validate_every": 2}
        _, told, end = train(model, options, "--val-tasks", "3", *budget(calls), cwd=tmp_path)
        return {"status": end["status"], **by_step(told)}

    ended = with_budget(6 + 2 * 32 + 2)
    assert (ended["status"], sorted(set(ended) - {"status"})) == ("budget", [1])
    resumed = with_budget(1000)
    assert resumed["status"] == "succeeded"
    assert "val/reward" in resumed[2]


def test_dr_grpo_with_clip_higher_in_two_updates_raises_the_reward(model: str, tmp_path: Path) -> None:
    options = {"advantage": "dr_grpo", "loss": "constant", "clip": [0.2, 0.28], "updates": 2, "kl": 0.01}
    options |= {"steps": 12, "batch_size": 8, "learning_rate": 1e-2}
    _, told, end = train(model, options, "--test-tasks", "16", cwd=tmp_path)
    rewards = [each["training/reward"] for each in by_step(told).values()]
    assert sum(rewards[-3:]) > 2 * sum(rewards[:3])
    assert end["metrics"]["test_reward"] > end["metrics"]["test_reward_initial"]
