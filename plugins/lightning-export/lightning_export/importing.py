"""`agl import`: ATIF trajectories as a run, which can be looked at, exported and learned from."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click

from lightning_core.cli.options import runs_dir_option, runs_root
from lightning_core.errors import ConfigError


@click.command(name="import")
@click.argument("source", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True))
@runs_dir_option
def import_(source: tuple[Path, ...], runs_dir: Path | None) -> None:
    """Read ATIF trajectories as the rollouts of a new run.

    SOURCE is a file with one trajectory, or with a line of JSON for each; or a folder, as harbor's jobs, whose
    trajectory.json files are read. Rewards are those of harbor's result.json, or of agl export.

    \b
    Example:
      agl import jobs/2026-01-31
      agl import trajectories.jsonl
    """
    # Imported here, so that listing the commands stays fast.
    import asyncio

    from atif import Trajectory
    from pydantic import ValidationError

    from lightning_core.emitter import emit_reward
    from lightning_core.registry import default_registry
    from lightning_core.runs.folder import RunFolder
    from lightning_core.runs.manifest import Manifest, Origin, now
    from lightning_core.runs.recording import DURABLE
    from lightning_core.store import LightningStore
    from lightning_core.types import Span
    from lightning_export.trajectories import OWN, spans_of

    start = now()
    folder = RunFolder.create(runs_root(runs_dir))

    async def read() -> int:
        options: dict[str, Any] = {"name": DURABLE, "path": folder.store_file, "run_id": folder.run_id}
        store = default_registry().build("stores", options, expected=LightningStore)
        count = 0
        try:
            for place, found, trial in _documents(source):
                try:
                    trajectory = Trajectory.model_validate(found)
                except ValidationError as exc:
                    raise ConfigError(f"{place} is not an ATIF trajectory: {exc}") from exc
                own = (trajectory.extra or {}).get(OWN, {})
                first = next((step.message for step in trajectory.steps if step.source == "user"), "")
                begun = await store.start_rollout(
                    own.get("input", first if isinstance(first, str) else json.loads(trajectory.model_dump_json())),
                    own.get("mode"),
                    metadata={"imported_from": str(place), "trajectory_id": trajectory.trajectory_id},
                )
                rollout_id, attempt_id = begun.rollout_id, begun.attempt.attempt_id
                ids = {"rollout_id": rollout_id, "attempt_id": attempt_id}
                spans = [span.model_copy(update=ids) for span in spans_of(trajectory)]
                if rewards := trial.rewards or own.get("rewards"):
                    given = emit_reward(rewards, propagate=False)
                    spans.append(Span.from_core_fields(given, rollout_id=rollout_id, attempt_id=attempt_id))
                await store.add_many_spans(spans)
                has_failed = trial.exception is not None or own.get("status") == "failed"
                await store.update_attempt(
                    rollout_id,
                    attempt_id,
                    "failed" if has_failed else "succeeded",
                    metadata=None if trial.exception is None else {"failure": _failure_of(trial.exception)},
                )
                count += 1
        finally:
            await store.aclose()
        return count

    try:
        count = asyncio.run(read())
        if not count:
            raise ConfigError(f"there is no ATIF trajectory in {', '.join(map(str, source))}")
        Manifest(
            run_id=folder.run_id,
            algorithm="import",
            outcome="succeeded",
            start=start,
            end=now(),
            store=DURABLE,
            store_file=folder.store_file.name,
            origin=Origin(folder=str(Path.cwd())),
        ).write(folder.manifest_file)
    except BaseException:
        _discard(folder.path)
        raise
    click.echo(f"{folder.run_id}: {count:,} rollouts; look at them with: agl show {folder.run_id}")


def _discard(folder: Path) -> None:
    import shutil

    shutil.rmtree(folder)


class _Trial(NamedTuple):
    """What harbor wrote of a trial beside its trajectory."""

    rewards: dict[str, float] | None = None
    exception: Any = None


def _documents(sources: tuple[Path, ...]) -> Iterator[tuple[Path, Any, _Trial]]:
    """Yield each trajectory with its place, and how its trial ended."""
    for source in sources:
        for path in sorted(source.rglob("trajectory.json")) if source.is_dir() else [source]:
            if path.suffix == ".jsonl":
                with open(path, "rb") as file:
                    for number, line in enumerate(file, 1):
                        if line.strip():
                            yield path, _parse(line, f"line {number} of {path}"), _Trial()
            else:
                yield path, _read(path), _trial_beside(path)


def _trial_beside(path: Path) -> _Trial:
    result = path.parent.parent / "result.json"
    found = _read(result) if result.is_file() else None
    if not isinstance(found, dict):
        return _Trial()
    rewards = (found.get("verifier_result") or {}).get("rewards") or {}
    return _Trial({name: value for name, value in rewards.items() if value is not None}, found.get("exception_info"))


def _failure_of(exception: Any) -> dict[str, str]:
    """Return harbor's account of an exception as attempts have theirs."""
    told = exception if isinstance(exception, dict) else {"exception_message": exception}
    return {name: str(told.get(f"exception_{name}") or "") for name in ("type", "message", "traceback")}


def _read(path: Path) -> Any:
    return _parse(path.read_bytes(), str(path))


def _parse(text: bytes, place: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as exc:
        raise ConfigError(f"{place} is not JSON: {exc}") from exc
