"""`agl resume`: a run that was killed goes on, and ends as if it had not been."""

import functools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lightning_core.runs.folder import RunFolder
from lightning_core.runs.result import USAGE_METRICS
from lightning_core.store import LightningStore
from lightning_core.testing.algorithm import work_of
from lightning_core.types import AttemptedRollout, Rollout

lightning_sqlite = pytest.importorskip("lightning_sqlite", reason="a run that was killed is continued from its store")


MODULE = '''
import asyncio, os, signal, threading, zlib

from lightning_core import PromptTemplate, rollout
from lightning_core.algorithm import Algorithm, run_batch


class Killer:
    """Kills this process, as `kill -9` does, when something has happened so often: KILL=rollout_end:5."""

    def __init__(self):
        self.moment, _, count = os.environ.get("KILL", "never:0").partition(":")
        self.left = int(count)

    def _happened(self, moment):
        if moment == self.moment:
            self.left -= 1
            if self.left == 0:
                os.kill(os.getpid(), getattr(__import__("signal"), os.environ.get("SIGNAL", "SIGKILL")))

    def lightning_rollout_start(self):
        self._happened("rollout_start")

    def lightning_rollout_end(self):
        self._happened("rollout_end")

    def lightning_step_end(self):
        self._happened("step_end")

    def lightning_run_end(self):
        self._happened("run_end")


@rollout
async def answer(task, prompt_template):
    """Scores a prompt as a model would that always gives the same answers."""
    await asyncio.sleep(0)
    return zlib.crc32(f"{task}|{prompt_template.template}".encode()) % 1000 / 999


class Climb(Algorithm):
    """Somebody's own algorithm: changes a prompt, keeps it if it is better, and saves each step."""

    def __init__(self, *, steps: int = 4, seed: int = 0, api_key: str | None = None):
        self.steps, self.seed = steps, seed

    async def run(self, train_dataset=None, val_dataset=None):
        store = self.get_store()
        state = await store.load_state("climb") or {
            "step": 0, "prompt": self.get_initial_resources()["main_prompt"].template, "reward": -1.0
        }
        for step in range(state["step"] + 1, self.steps + 1):
            prompt = f"{state['prompt']} {zlib.crc32(f'{self.seed} {step}'.encode()) % 100}"
            update = await store.add_resources(
                {"main_prompt": PromptTemplate(template=prompt)}, request_id=f"climb/{step}/prompt"
            )
            batch = await run_batch(
                store, train_dataset, mode="train", resources_id=update.resources_id, request_id=f"climb/{step}"
            )
            state = {**state, "step": step}
            if batch.mean_reward > state["reward"]:
                state = {"step": step, "prompt": prompt, "reward": batch.mean_reward}
            await store.save_state("climb", state)
            best = {"main_prompt": PromptTemplate(template=state["prompt"])}
            self.report({"train_reward": state["reward"]}, step=step, best_resources=best)
'''

CONFIG = """
agent: resumed:answer
algorithm: {algorithm}
n_runners: 3
hooks: ["resumed:Killer"]
initial_resources:
  main_prompt: {{resource_type: prompt_template, template: "Answer:"}}
train_dataset: train.json
val_dataset: [v1, v2, v3, v4]
test_dataset: [t1, t2, t3, t4, t5]
"""
CLIMB = "{name: 'resumed:Climb', steps: 4}"
BASELINE = "{name: baseline, n_epochs: 2}"

Done = subprocess.CompletedProcess[str]


def run_agl(folder: Path, *arguments: str, kill: str = "never:0", **variables: str) -> Done:
    """Run `agl` in a process of its own, in a folder of its own."""
    return subprocess.run(
        [sys.executable, "-m", "lightning_core", *arguments],
        cwd=folder,
        env={**os.environ, "AGL_RUNS_DIR": str(folder / "runs"), "KILL": kill, **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


def make_folder(folder: Path, algorithm: str) -> Path:
    (folder / "resumed.py").write_text(MODULE)
    (folder / "train.json").write_text(json.dumps([f"question {number}" for number in range(8)]))
    (folder / "config.yaml").write_text(CONFIG.format(algorithm=algorithm))
    return folder


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], RunFolder]:
    """A run that nobody disturbed, by its algorithm."""

    @functools.cache
    def run(algorithm: str) -> RunFolder:
        folder = make_folder(tmp_path_factory.mktemp("undisturbed"), algorithm)
        done = run_agl(folder, "train", "config.yaml")
        assert done.returncode == 0, done.stderr
        return only_run(folder)

    return run


def only_run(folder: Path) -> RunFolder:
    """The one run that there is."""
    [path] = (folder / "runs").iterdir()
    return RunFolder(path)


def outcome_of(folder: RunFolder) -> dict[str, Any]:
    """What came of a run, but for ids, times, and what it used: attempts that were cut off had made calls, too."""
    manifest = folder.manifest()
    assert manifest.result is not None
    result = manifest.record()["result"]
    del result["duration_seconds"], result["usage"]
    result["metrics"] = without_usage(result["metrics"])
    result["rollouts"].pop("retried")
    return {
        "outcome": manifest.outcome,
        "result": result,
        "best": json.loads(folder.best_file.read_text()),
        "metrics": [
            {
                **{name: value for name, value in each.items() if name != "time"},
                "metrics": without_usage(each["metrics"]),
            }
            for each in map(json.loads, folder.metrics_file.read_text().splitlines())
        ],
    }


def without_usage(metrics: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if name not in USAGE_METRICS}


def newest_attempt(rollout: Rollout) -> str:
    assert isinstance(rollout, AttemptedRollout)
    return rollout.attempt.attempt_id


def open_store(folder: RunFolder) -> LightningStore:
    store: LightningStore = lightning_sqlite.SqliteLightningStore(folder.store_file, run_id=folder.run_id)
    return store


async def ended_before(folder: RunFolder) -> dict[str, str]:
    """By rollout, the attempt by which it has succeeded in a run that was killed: looked at in a copy."""
    copy = folder.path.with_name(f"copy of {folder.run_id}")
    shutil.copytree(folder.path, copy)
    store: LightningStore = lightning_sqlite.SqliteLightningStore(copy / "store.db", run_id=folder.run_id)
    try:
        return {each.rollout_id: newest_attempt(each) for each in await store.query_rollouts(status_in=["succeeded"])}
    finally:
        await store.aclose()
        shutil.rmtree(copy)


async def check_work(killed: RunFolder, whole: RunFolder, done: dict[str, str]) -> None:
    """What was done in both is the same, and what had ended before the kill was not done again."""
    stores = [open_store(killed), open_store(whole)]
    try:
        works: list[Counter[str]] = [await work_of(store) for store in stores]
        assert works[0] == works[1]
        rollouts = await stores[0].query_rollouts()
        assert {each.status for each in rollouts} == {"succeeded"}
        attempts = {each.rollout_id: newest_attempt(each) for each in rollouts}
        assert {rollout_id: attempts[rollout_id] for rollout_id in done} == done
    finally:
        for store in stores:
            await store.aclose()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "kill"),
    [
        (BASELINE, "step_end:1"),
        (BASELINE, "rollout_end:27"),
        (CLIMB, "rollout_end:36"),
        (CLIMB, "run_end:1"),
    ],
    ids=lambda value: re.sub(r"\W+", " ", value).strip(),
)
async def test_a_killed_run_ends_as_if_it_had_not_been(
    algorithm: str, kill: str, undisturbed: Callable[[str], RunFolder], tmp_path: Path
) -> None:
    make_folder(tmp_path, algorithm)
    assert run_agl(tmp_path, "train", "config.yaml", kill=kill).returncode == -signal.SIGKILL
    killed, whole = only_run(tmp_path), undisturbed(algorithm)
    assert killed.standing(killed.manifest()) == "killed"
    done = await ended_before(killed)
    resumed = run_agl(tmp_path, "resume", killed.run_id)
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    assert outcome_of(killed) == outcome_of(whole)
    succeeded = outcome_of(whole)["result"]["rollouts"]["succeeded"]
    assert f" s: {succeeded:,} rollouts succeeded" in resumed.stdout
    await check_work(killed, whole, done)


def test_after_ctrl_c_the_summary_says_how_to_go_on(tmp_path: Path) -> None:
    make_folder(tmp_path, BASELINE)
    interrupted = run_agl(tmp_path, "train", "config.yaml", kill="rollout_end:5", SIGNAL="SIGINT")
    assert interrupted.returncode == 130, interrupted.stderr
    run = only_run(tmp_path)
    assert f"go on with it: agl resume {run.run_id}\n" in interrupted.stdout
    assert run.manifest().outcome == "interrupted"
    assert run.manifest().result is not None
    assert run_agl(tmp_path, "resume", run.run_id[:8]).returncode == 0
    assert run.manifest().outcome == "succeeded"
    again = run_agl(tmp_path, "resume", run.run_id[:8])
    assert again.returncode == 0
    assert again.stdout.startswith(f"run {run.run_id} has succeeded already; there is nothing to do\n")
    assert "held-out" in again.stdout


def test_what_has_changed_is_told_by_name_and_needs_force(tmp_path: Path) -> None:
    make_folder(tmp_path, CLIMB)
    run_agl(tmp_path, "train", "config.yaml", "--set", "algorithm.seed=7", kill="step_end:2")
    run = only_run(tmp_path)
    assert run.manifest().origin.seed == 7
    config = (tmp_path / "config.yaml").read_text()
    (tmp_path / "config.yaml").write_text(config.replace("steps: 4", "steps: 3"))
    (tmp_path / "resumed.py").write_text(MODULE + "\n# changed\n")
    (tmp_path / "train.json").write_text('["another question"]')
    refused = run_agl(tmp_path, "resume", run.run_id)
    assert refused.returncode == 2
    assert refused.stderr.splitlines() == [
        f"Error: run {run.run_id} was made of something else: algorithm.steps 4 → 3; {tmp_path / 'train.json'}; "
        f"{tmp_path / 'resumed.py'}. Undo that, or go on all the same with --force"
    ]
    assert run.standing(run.manifest()) == "killed"
    forced = run_agl(tmp_path, "resume", run.run_id, "--force")
    assert forced.returncode == 0, forced.stderr
    [continuation] = run.manifest().resumed
    assert continuation.changes[0] == "algorithm.steps 4 → 3"
    assert run.manifest().origin.config["algorithm"]["steps"] == 3


@pytest.mark.parametrize("kill", ["rollout_end:3", "run_end:1"], ids=["while it runs", "when it has an outcome"])
def test_a_gate_that_goes_on_ends_with_its_outcome(tmp_path: Path, kill: str) -> None:
    make_folder(tmp_path, BASELINE)
    assert run_agl(tmp_path, "eval", "config.yaml").returncode == 0
    (tmp_path / "runs").rename(tmp_path / "before")
    [evaluation] = (tmp_path / "before").glob("*/evaluation.json")
    files = ["--markdown", "gate.md"]
    killed = run_agl(tmp_path, "gate", "config.yaml", "--baseline", str(evaluation), *files, kill=kill)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    for _ in range(2):  # the second time it has ended
        resumed = run_agl(tmp_path, "resume", only_run(tmp_path).run_id)
        assert resumed.returncode == 4, resumed.stderr
        assert "### Gate: undecided" in resumed.stdout
        assert "on 5 of 5 samples." in resumed.stdout
        assert "had faults" not in resumed.stdout
    assert (tmp_path / "gate.md").read_text() in resumed.stdout
    [manifest] = (tmp_path / "runs").glob("*/manifest.json")
    assert json.loads(manifest.read_text())["conclusion"]["record"]["outcome"] == "undecided"
    assert "gate       undecided: The samples do not tell" in resumed.stdout
