"""`agl export RUN --to atif`: a folder of ATIF trajectories, which is also a job of harbor."""

import asyncio
import json
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from atif import Trajectory

from lightning_core.adapter import read_usage
from lightning_core.errors import ConfigError, Fault
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

    reading, trials = Reading(), list[_Trial]()

    def made(ended: Ended) -> Trajectory | None:
        return trajectory_of(ended, run_id=run.run_id, agent=agent, version=version)

    def written(ended: Ended) -> None:
        if (trajectory := made(ended)) is not None:
            trials.append(_write_trial(target, ended, trajectory))

    async def write() -> None:
        async for ended in read_ended(run, wanted, made):
            reading.make(written, ended)

    asyncio.run(write())
    if not trials:
        raise ConfigError(f"run {run.run_id} has no trajectory: no recorded model calls in its {reading}")
    _write(target / "result.json", _job(run, trials))
    return f"{len(trials):,} trajectories of {reading}"


def _write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=2, default=str) + "\n", encoding="utf-8")


class _Trial(NamedTuple):
    """What a job sums up of a trial."""

    has_failed: bool
    cost: float | None


def _job(run: RunFolder, trials: Sequence[_Trial]) -> dict[str, Any]:
    """Return what harbor's viewer reads of a job."""
    manifest, costs = run.manifest(), [trial.cost for trial in trials if trial.cost is not None]
    return {
        "id": uuid.uuid5(uuid.NAMESPACE_URL, run.run_id),
        "started_at": manifest.start,
        "finished_at": manifest.end,
        "n_total_trials": len(trials),
        "stats": {
            "n_completed_trials": len(trials),
            "n_errored_trials": sum(trial.has_failed for trial in trials),
            "cost_usd": sum(costs) if costs else None,
        },
    }


def _write_trial(target: Path, ended: Ended, trajectory: Trajectory) -> _Trial:
    """Write a trajectory, and beside it what harbor's viewer reads of a trial."""
    rollout_id, attempt = ended.rollout.rollout_id, ended.rollout.attempt
    exception = _exception(ended) if ended.rollout.status == "failed" else None
    agent, used = trajectory.agent, read_usage(ended.spans)
    task = f"{ended.rollout.mode or 'task'}-{rollout_id}"
    model = agent.model_name
    times = {"started_at": _moment(attempt.start_time), "finished_at": _moment(attempt.end_time)}
    trial = {
        "task_name": task,
        "trial_name": rollout_id,
        "trial_uri": f"./{rollout_id}",
        "task_id": {"path": task},
        "task_checksum": "",
        "config": {
            "task": {"path": task},
            "trial_name": rollout_id,
            "agent": {"name": agent.name, "model_name": model},
        },
        "agent_info": {
            "name": agent.name,
            "version": agent.version,
            "model_info": None if model is None else {"name": model},
        },
        "agent_result": {
            "n_input_tokens": used.input_tokens,
            "n_output_tokens": used.output_tokens,
            "cost_usd": used.cost,
        },
        "verifier_result": {"rewards": rewards_of(ended)} if ended.reward is not None else None,
        "exception_info": exception,
        "agent_execution": times,
        **times,
    }
    folder = target / rollout_id
    (folder / "agent").mkdir(parents=True)
    _write(folder / "agent" / "trajectory.json", trajectory.to_json_dict())
    _write(folder / "result.json", trial)
    if exception is not None:
        text = exception["exception_traceback"] or "{exception_type}: {exception_message}".format(**exception)
        (folder / "exception.txt").write_text(text, encoding="utf-8")
    return _Trial(exception is not None, used.cost)


def _exception(ended: Ended) -> dict[str, Any]:
    attempt = ended.rollout.attempt
    metadata = attempt.metadata or {}
    failure = {"type": Fault.__name__, "message": metadata["fault"]} if "fault" in metadata else metadata.get("failure")
    failure = failure or {"type": attempt.status}
    return {
        **{f"exception_{name}": str(failure.get(name) or "") for name in ("type", "message", "traceback")},
        "occurred_at": _moment(attempt.end_time or attempt.start_time),
    }


def _moment(seconds: float | None) -> str | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat()
