"""`agl import`: ATIF trajectories as a run, which can be looked at, exported and learned from."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from lightning_core.cli.options import runs_dir_option, runs_root


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
    from lightning_core.errors import ConfigError
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
            for place, found, rewards in _documents(source):
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
                if rewards := rewards or own.get("rewards"):
                    given = emit_reward(rewards, propagate=False)
                    spans.append(Span.from_core_fields(given, rollout_id=rollout_id, attempt_id=attempt_id))
                await store.add_many_spans(spans)
                await store.update_attempt(
                    rollout_id, attempt_id, "failed" if own.get("status") == "failed" else "succeeded"
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


def _documents(sources: tuple[Path, ...]) -> Iterator[tuple[Path, Any, dict[str, float] | None]]:
    """Yield each trajectory with its place, and the rewards that harbor wrote beside it."""
    for source in sources:
        for path in sorted(source.rglob("trajectory.json")) if source.is_dir() else [source]:
            with open(path, encoding="utf-8") as file:
                if path.suffix == ".jsonl":
                    for line in file:
                        if line.strip():
                            yield path, json.loads(line), None
                else:
                    yield path, json.load(file), _rewards_beside(path)


def _rewards_beside(path: Path) -> dict[str, float] | None:
    result = path.parent.parent / "result.json"
    if not result.is_file():
        return None
    found = json.loads(result.read_text(encoding="utf-8"))
    return (found.get("verifier_result") or {}).get("rewards") if isinstance(found, dict) else None
