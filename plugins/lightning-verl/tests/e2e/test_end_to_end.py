"""Whole trainings that are ended from outside, each in a process with a Ray of its own."""

import asyncio
import signal
from pathlib import Path

import pytest
from watched import train

from lightning_core.registry import default_registry
from lightning_core.runs.folder import runs_in
from lightning_core.store import LightningStore

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_killed_it_goes_on_with_the_groups_that_it_carried_over(model: str, tmp_path: Path) -> None:
    arguments = (
        model,
        *("trainer.v1.trainer_mode=colocate_async", "trainer.total_training_steps=50", "trainer.save_freq=1"),
        "algorithm.rollout_correction.bypass_mode=True",  # without the actor's own probabilities
        *("--tasks", "400", "--test-tasks", "2", "--run", "runs"),
    )
    killed = train(*arguments, "--end-at", "2", "--end-by", "SIGKILL", cwd=tmp_path)
    assert killed.status == -signal.SIGKILL
    assert killed.left == [], "nothing outlives the process, Ray included"
    assert [step["step"] for step in killed.steps] == [1, 2]
    before = asyncio.run(rollouts_by_task(tmp_path / "runs"))
    interrupted = train(*arguments, "--end-at", "5", "--end-by", "SIGINT", cwd=tmp_path)
    assert interrupted.left == []
    assert all(step["actor/grad_norm"] > 0 for step in [*killed.steps, *interrupted.steps])
    assert interrupted.end["status"] == "interrupted"
    assert interrupted.steps[0]["step"] in (2, 3), "it goes on from the last checkpoint"
    mode, at_the_start, _ = interrupted.end["comparison"]
    assert mode == "test"
    assert "n=2" in at_the_start, "what was measured before the kill"
    after = asyncio.run(rollouts_by_task(tmp_path / "runs"))
    succeeded = {task: statuses.count("succeeded") for task, statuses in after.items()}
    assert max(succeeded.values()) == 4, "a step's rollouts are run once"
    assert [succeeded[task] for task in before] == [4] * len(before), "no other task was put in the place of a lost one"
    assert list(succeeded.values()).count(4) >= 8 * interrupted.steps[-1]["step"]


async def rollouts_by_task(root: Path) -> dict[int, list[str]]:
    """Return how the training rollouts of the one run below a folder stand, by task."""
    folder = runs_in(root)[0]
    store = default_registry().build(
        "stores", {"name": "sqlite", "path": folder.store_file, "run_id": folder.run_id}, expected=LightningStore
    )
    found: dict[int, list[str]] = {}
    for each in await store.query_rollouts(mode_in=["train"]):
        found.setdefault((each.metadata or {})["task"], []).append(each.status)
    await store.aclose()
    return found
