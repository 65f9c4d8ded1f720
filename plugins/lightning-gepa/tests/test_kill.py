"""A run that was killed, and interrupted, goes on with `agl resume`: nothing is paid for again."""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from gepa_toys import Models
from lightning_sqlite import SqliteLightningStore

from lightning_core.algorithm.own_calls import is_of_algorithm
from lightning_core.runs.folder import RunFolder
from lightning_core.testing.algorithm import work_of

AGENT = '''
import os, signal, zlib

from lightning_core import rollout


class Killer:
    """Ends this process by a signal when so many rollouts have ended: END="12 SIGKILL"."""

    def __init__(self):
        count, self.signal = os.environ.get("END", "0 SIGKILL").split()
        self.left = int(count)

    def lightning_rollout_end(self):
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), getattr(signal, self.signal))


@rollout
async def agent(task, resources):
    text = "".join(resources[name].template for name in ("plan", "answer"))
    return zlib.crc32(f"{task}|{text}".encode()) % 1000 / 999
'''

CONFIG: dict[str, Any] = {
    "agent": "killed:agent",
    "algorithm": {"name": "gepa", "reflection_lm": "m", "max_metric_calls": 60, "n_proposals": 2},
    "n_runners": 3,
    "hooks": ["killed:Killer"],
    "initial_resources": {
        name: {"resource_type": "prompt_template", "template": f"{name}: {{question}}"} for name in ("plan", "answer")
    },
    "train_dataset": [f"question {number}" for number in range(8)],
    "val_dataset": [f"validation {number}" for number in range(6)],
    "test_dataset": [f"held out {number}" for number in range(4)],
}


async def run_agl(folder: Path, url: str, *arguments: str, end: str = "0 SIGKILL") -> tuple[int, str]:
    """Run `agl` in a process of its own."""
    environment = {**os.environ, "AGL_RUNS_DIR": str(folder / "runs"), "END": end}
    environment |= {"OPENAI_BASE_URL": url, "OPENAI_API_KEY": "toy-key"}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "lightning_core", *arguments),
        cwd=folder,
        env=environment,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        output, _ = await asyncio.wait_for(process.communicate(), timeout=280)
    except BaseException:
        process.kill()
        await process.wait()
        raise
    assert process.returncode is not None
    return process.returncode, output.decode()


def run_of(folder: Path) -> RunFolder:
    [path] = (folder / "runs").iterdir()
    return RunFolder(path)


def figures_of(run: RunFolder) -> Any:
    """What came of a run, and each step of it."""
    steps = [json.loads(line) for line in run.metrics_file.read_text().splitlines()]
    result = run.manifest().result
    assert result is not None
    own = {"candidates", "metric_calls", "reflection_calls", "val_reward", "val_gain", "test_reward"}
    reported = [(each["step"], each["metrics"]) for each in steps if own & each["metrics"].keys()]
    return reported, {name: result.metrics[name] for name in own}, json.loads(run.best_file.read_text())


@pytest.mark.slow
@pytest.mark.timeout(500)
async def test_a_run_that_was_killed_and_interrupted_ends_as_if_it_had_not_been(tmp_path: Path) -> None:
    folders = {name: tmp_path / name for name in ("whole", "killed")}
    for folder in folders.values():
        folder.mkdir()
        (folder / "killed.py").write_text(AGENT)
        (folder / "config.yaml").write_text(json.dumps(CONFIG))
    models = {name: Models() for name in folders}
    async with models["whole"].serving() as url:
        code, output = await run_agl(folders["whole"], url, "train", "config.yaml")
        assert code == 0, output
    whole, folder = run_of(folders["whole"]), folders["killed"]
    async with models["killed"].serving() as url:
        code, output = await run_agl(folder, url, "train", "config.yaml", end="20 SIGKILL")
        assert code == -9, output
        killed = run_of(folder)
        code, output = await run_agl(folder, url, "resume", killed.run_id, end="15 SIGINT")
        assert code == 130, output
        assert "Traceback" not in output
        code, output = await run_agl(folder, url, "resume", killed.run_id)
        assert code == 0, output
    assert figures_of(killed) == figures_of(whole)
    stores = [SqliteLightningStore(each.store_file, run_id=each.run_id) for each in (killed, whole)]
    try:
        works = [await work_of(store) for store in stores]
        rollouts = [each for each in await stores[0].query_rollouts() if not is_of_algorithm(each)]
    finally:
        for store in stores:
            await store.aclose()
    assert works[0] == works[1]
    assert {each.status for each in rollouts} == {"succeeded"}
    # At most what was asked when the run was ended was asked again.
    asked = {
        name: [f"{each['seed']} {each['messages'][0]['content']}" for each in model.requests]
        for name, model in models.items()
    }
    assert set(asked["killed"]) == set(asked["whole"])
    assert len(asked["killed"]) <= len(asked["whole"]) + 4
    assert not list(killed.path.rglob("*.bin"))
