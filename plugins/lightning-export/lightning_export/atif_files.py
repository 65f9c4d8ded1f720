"""`agl export RUN --to atif`: a folder of ATIF trajectories, which is also a job of harbor."""

import asyncio
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from atif import Trajectory

from lightning_core.errors import ConfigError
from lightning_core.runs.folder import RunFolder
from lightning_core.types import RolloutMode
from lightning_export.attempts import Ended, Reading, Wanted, agent_of, read_ended
from lightning_export.trajectories import rewards_of, trajectory_of


def atif(
    run: RunFolder,
    target: Path,
    *,
    best: int | None = None,
    min_reward: float | None = None,
    mode: RolloutMode | None = None,
    redact: bool = False,
) -> str:
    """Write a trajectory of each rollout that succeeded or failed, as `ROLLOUT/agent/trajectory.json`.

    Beside it is a `result.json` as harbor's trials have one, with the rewards.

    Args:
        run: The run.
        target: The folder to make.
        best: Of each input only so many rollouts, with the highest rewards.
        min_reward: Only rollouts with at least this reward.
        mode: Only rollouts of this mode.
        redact: Replace secrets, and leave out token ids.

    Raises:
        ConfigError: When the run has no rollout with a recorded model call.
    """
    wanted = Wanted(statuses=("succeeded", "failed"), mode=mode, best=best, min_reward=min_reward, redact=redact)
    agent, git = agent_of(run), run.manifest().origin.git
    version = "unknown" if git is None else git.commit[:12]

    reading = Reading()

    def made(ended: Ended) -> Trajectory | None:
        return trajectory_of(ended, run_id=run.run_id, agent=agent, version=version)

    def written(ended: Ended) -> bool:
        if (trajectory := made(ended)) is None:
            return False
        trial = _trial(ended, agent, version)
        folder = target / ended.rollout.rollout_id
        (folder / "agent").mkdir(parents=True)
        _write(folder / "agent" / "trajectory.json", trajectory.to_json_dict())
        _write(folder / "result.json", trial)
        return True

    async def write() -> int:
        return sum([reading.make(written, ended) or False async for ended in read_ended(run, wanted, made)])

    if not (count := asyncio.run(write())):
        raise ConfigError(f"run {run.run_id} has no trajectory: no recorded model calls in its {reading}")
    return f"{count:,} trajectories of {reading}"


def _write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=2, default=str) + "\n", encoding="utf-8")


def _trial(ended: Ended, agent: str, version: str) -> dict[str, Any]:
    """Return what harbor's viewer reads of a trial."""
    rollout_id = ended.rollout.rollout_id
    task = f"{ended.rollout.mode or 'task'}-{rollout_id}"
    return {
        "task_name": task,
        "trial_name": rollout_id,
        "trial_uri": f"./{rollout_id}",
        "task_id": {"path": task},
        "task_checksum": "",
        "config": {"task": {"path": task}, "trial_name": rollout_id, "agent": {"name": agent}},
        "agent_info": {"name": agent, "version": version},
        "verifier_result": {"rewards": rewards_of(ended)},
        "started_at": _moment(ended.rollout.attempt.start_time),
        "finished_at": _moment(ended.rollout.attempt.end_time),
    }


def _moment(seconds: float | None) -> str | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat()
