"""`agl import`: trajectories and traces as a run, which can be looked at, exported and learned from."""

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from lightning_core.cli.options import runs_dir_option, runs_root
from lightning_core.errors import ConfigError, Fault, first_fault

if TYPE_CHECKING:
    from lightning_core.runs.folder import RunFolder
    from lightning_core.types import AttemptStatus, RolloutMode, Span
    from lightning_export.sources import Trace

NEWEST = (1, 8)
"""The newest version of ATIF that is read."""

AGENT_ERRORS = frozenset(
    {
        *("AgentTimeoutError", "NonZeroAgentExitCodeError", "AgentSafetyRefusalError", "ContentPolicyViolationError"),
        *("ContextWindowExceededError", "ContextLengthExceededError"),
        *("OutputTokenExceededError", "OutputLengthExceededError"),
    }
)
"""Exceptions of harbor's trials that are the agent's failures. Any other one, known or not, is a fault: a lost sample
costs less than one that counts as a bad answer."""

MAX_FILE_BYTES = 128 * 1024 * 1024
"""The largest file that is read."""


@click.command(name="import")
@click.argument("source", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True))
@click.option(
    "--from",
    "form",
    type=click.Choice(["atif", "otlp", "langfuse", "phoenix", "mlflow"]),
    default="atif",
    show_default=True,
    help="What the files are an export of.",
)
@runs_dir_option
def import_(source: tuple[Path, ...], form: str, runs_dir: Path | None) -> None:
    """Read trajectories or traces as the rollouts of a new run.

    SOURCE is a file of JSON, or with a line of JSON for each trajectory, trace, span or score. Scores and feedback
    become rewards under their names. Of ATIF it may be a folder, as harbor's jobs, whose trajectory.json files are
    read; rewards are those of harbor's result.json, or of agl export.

    \b
    Example:
      agl import jobs/2026-01-31
      agl import --from langfuse observations.jsonl scores.jsonl
    """
    # Imported here, so that listing the commands stays fast.
    import asyncio

    from lightning_core.runs.folder import RunFolder
    from lightning_core.runs.manifest import Manifest, Origin, now
    from lightning_core.runs.recording import DURABLE

    skipped, traces = None, None
    if form != "atif":
        from lightning_export.sources import Skipped, traces_of

        skipped = Skipped()
        traces = traces_of(form, source, skipped, limit=MAX_FILE_BYTES)
    folder = RunFolder.create(runs_root(runs_dir))
    manifest = Manifest(
        run_id=folder.run_id,
        algorithm="import",
        outcome="running",
        start=now(),
        store=DURABLE,
        store_file=folder.store_file.name,
        origin=Origin(folder=str(Path.cwd())),
    )
    try:
        folder.lock.take()
        manifest.write(folder.manifest_file)
        rollouts = _of_trajectories(source) if traces is None else _of_traces(traces)
        count = asyncio.run(_write_into(folder, rollouts))
        if not count:
            raise ConfigError(f"there is no ATIF trajectory in {', '.join(map(str, source))}")
        manifest.model_copy(update={"outcome": "succeeded", "end": now()}).write(folder.manifest_file)
    except BaseException:
        folder.lock.release()
        folder.remove()
        raise
    folder.lock.release()
    click.echo(f"{folder.run_id}: {count:,} rollouts; look at them with: agl show {folder.run_id}")
    if skipped is not None:
        click.echo("good for tasks, prompts and supervised rows; not for reinforcement learning, which needs token ids")
        if skipped.reasons:
            click.echo(f"left out: {skipped}", err=True)


class _Imported(NamedTuple):
    """One execution of an agent, as a rollout has it."""

    input: Any
    mode: "RolloutMode | None"
    metadata: dict[str, Any]
    """The rollout's metadata."""
    spans: "list[Span]"
    rewards: dict[str, float]
    has_failed: bool
    reason: dict[str, Any] | None
    """Why it failed: the attempt's metadata."""


async def _write_into(folder: "RunFolder", rollouts: Iterable[_Imported]) -> int:
    """Make a rollout of each; return how many there are."""
    from lightning_core.emitter import emit_reward
    from lightning_core.errors import InvalidRequest
    from lightning_core.registry import default_registry
    from lightning_core.runs.recording import DURABLE
    from lightning_core.store import LightningStore
    from lightning_core.types import Span

    options = {"name": DURABLE, "path": folder.store_file, "run_id": folder.run_id}
    store = default_registry().build("stores", options, expected=LightningStore)
    count = 0
    try:
        for each in rollouts:
            try:
                begun = await store.start_rollout(each.input, each.mode, metadata=each.metadata)
            except InvalidRequest as exc:  # such as half a character
                raise ConfigError(f"{each.metadata['imported_from']} cannot be stored: {exc}") from exc
            rewards = [Span.from_core_fields(emit_reward(each.rewards, propagate=False))] if each.rewards else []
            ids = {"rollout_id": begun.rollout_id, "attempt_id": begun.attempt.attempt_id, "sequence_id": 0}
            await store.add_many_spans([span.model_copy(update=ids) for span in (*each.spans, *rewards)])
            status: AttemptStatus = "failed" if each.has_failed else "succeeded"
            await store.update_attempt(begun.rollout_id, begun.attempt.attempt_id, status, metadata=each.reason)
            count += 1
    finally:
        await store.aclose()
    return count


def _of_traces(traces: "Iterable[Trace]") -> Iterator[_Imported]:
    from lightning_core.types.text import well_formed_value

    for trace in traces:
        metadata = {"imported_from": trace.place, "trace_id": trace.key, "answer": trace.output}
        metadata |= {} if trace.expected is None else {"expected": trace.expected}
        sample, metadata, reason = well_formed_value(trace.input), well_formed_value(metadata), None
        if trace.error is not None:
            reason = {"fault": trace.error} if trace.is_fault() else {"failure": {"message": trace.error}}
        yield _Imported(sample, None, metadata, trace.spans, trace.rewards, reason is not None, reason)


def _of_trajectories(source: tuple[Path, ...]) -> Iterator[_Imported]:
    from atif import Trajectory
    from pydantic import ValidationError

    from lightning_export.trajectories import own_of, spans_of

    for place, document, trial in _documents(source):
        _check_version(place, document)
        try:
            trajectory = Trajectory.model_validate(document)
            extra, spans = own_of(trajectory), list(spans_of(trajectory))
        except ValueError as exc:  # also a timestamp that is not one
            why = first_fault(exc) if isinstance(exc, ValidationError) else exc
            raise ConfigError(f"{place} is not an ATIF trajectory: {why}") from exc
        task: Any = next((step.message for step in trajectory.steps if step.source == "user"), "")
        if "input" in extra.model_fields_set:
            task = extra.input
        elif not isinstance(task, str):
            task = json.loads(trajectory.model_dump_json())
        yield _Imported(
            task,
            extra.mode,
            {"imported_from": place, "trajectory_id": trajectory.trajectory_id},
            spans,
            trial.rewards or extra.rewards,
            trial.exception is not None or extra.status == "failed",
            _reason(trial.exception, is_own=extra.status is not None),
        )


class _Trial(NamedTuple):
    """What harbor wrote of a trial beside its trajectory."""

    rewards: dict[str, float] = {}  # noqa: RUF012  # not changed
    exception: Any = None


def _documents(sources: tuple[Path, ...]) -> Iterator[tuple[str, Any, _Trial]]:
    """Yield each trajectory with its place, and how its trial ended."""
    from lightning_export.sources import Skipped, records_of

    for source in sources:
        for path in sorted(source.rglob("trajectory.json")) if source.is_dir() else [source]:
            if not path.is_file():  # a pipe or a device may block, or never end
                raise ConfigError(f"{path} is not a regular file; write what it gives to a file, and import that")
            skipped = Skipped()
            for place, document in records_of(path, skipped, limit=MAX_FILE_BYTES):
                yield place, document, _trial_beside(path) if place == str(path) else _Trial()
            if skipped.reasons:
                raise ConfigError(str(skipped))


def _trial_beside(path: Path) -> _Trial:
    from pydantic import ValidationError

    from lightning_export.trajectories import TrialResult

    result = path.parent.parent / "result.json"
    if not result.is_file():
        return _Trial()
    try:
        read = TrialResult.model_validate_json(result.read_bytes())
    except ValidationError as exc:
        raise ConfigError(f"{result} is not the result of a trial: {first_fault(exc)}") from exc
    rewards = (read.verifier_result and read.verifier_result.rewards) or {}
    exceptions = [each.exception_info for each in (read, *(read.step_results or ())) if each.exception_info is not None]
    return _Trial(
        {name: value for name, value in rewards.items() if value is not None}, exceptions[0] if exceptions else None
    )


def _reason(exception: Any, *, is_own: bool) -> dict[str, Any] | None:
    """Return harbor's account of an exception as attempts have theirs: as a failure, or as a fault."""
    if exception is None:
        return None
    fields = exception if isinstance(exception, dict) else {"exception_message": exception}
    failure = {name: str(fields.get(f"exception_{name}") or "") for name in ("type", "message", "traceback")}
    kind = failure["type"]
    if (kind != Fault.__name__) if is_own else (kind in AGENT_ERRORS):
        return {"failure": failure}
    named = "" if kind == Fault.__name__ else kind
    return {"fault": ": ".join(filter(None, (named, failure["message"])))}


def _check_version(place: str, document: Any) -> None:
    version = document.get("schema_version")
    read = re.fullmatch(r"ATIF-v(\d+)\.(\d+)", str(version))
    if read is None or (int(read[1]), int(read[2])) > NEWEST:
        from lightning_export.sources import source_of

        newest, looks = "ATIF-v{}.{}".format(*NEWEST), source_of(document)
        hint = f"; it looks like an export of {looks}; take --from {looks}" if looks not in (None, "atif") else ""
        raise ConfigError(f"{place} has the schema_version {version!r}; this reads ATIF-v1.0 to {newest}{hint}")
