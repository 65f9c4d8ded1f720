"""A config file's job: what it is made of, its run, and what is said of it."""

import asyncio
import json
import os
import re
import sys
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import yaml

from lightning_core.agent.grader_check import JUNK, candidate_of, check_grader
from lightning_core.algorithm import Conclusion
from lightning_core.cli import BUDGET, INTERRUPTED
from lightning_core.cli.console import plain_console, show_warnings, stdout_for_json
from lightning_core.cli.display import announce, reporting, write_result
from lightning_core.cli.options import HIDDEN, RunOptions, hidden_keys, key_of, runs_root, with_runs_dir
from lightning_core.cli.run_report import load_run, print_run, run_record
from lightning_core.config import Job, load_job, resolved_config, resolved_values
from lightning_core.config.files import read_yaml
from lightning_core.config.model import DATASETS
from lightning_core.display.live import Display
from lightning_core.errors import ConfigError, InvalidInput, LightningError, RunFolderError
from lightning_core.registry import default_registry
from lightning_core.runs import FitResult
from lightning_core.runs.first_rollouts import how_to_record
from lightning_core.runs.folder import find_run, in_use
from lightning_core.runs.held_out import warn_of_overlap
from lightning_core.runs.manifest import Origin, changes_since, describe_origin
from lightning_core.runs.recording import DURABLE, require_store
from lightning_core.runs.result import more_budget
from lightning_core.secrets import hide_keys_in, without_secrets
from lightning_core.store import InMemoryLightningStore

_REFERENCE = re.compile(r"os\.environ/\w+")


def job_origin(config_file: Path, job: Job, overrides: Iterable[str]) -> Origin:
    """Look at what a job is made of.

    Args:
        config_file: Where it was loaded from.
        job: The job, loaded.
        overrides: What was set over the file, each as `key=value`.

    Raises:
        RunFolderError: When a file that it depends on cannot be read.
    """
    config = resolved_values(job)
    algorithm = config["algorithm"]
    return describe_origin(
        config_file=config_file,
        overrides=[_without_secret(each) for each in overrides],
        config=config,
        seed=algorithm.get("seed"),
        data_files=_data_files(job, config_file.resolve().parent),
    )


def all_overrides(kept: Sequence[str], given: Sequence[str], *, run_id: str) -> list[str]:
    """Return what is set over the config file when a run goes on: what was set before, and what is set now.

    Raises:
        RunFolderError: When a secret was set before, which was not kept, and is not set again.
    """
    again = {key_of(each) for each in given}
    left = [each for each in kept if not _is_set_by(key_of(each), again)]
    if missing := hidden_keys(left):
        options = " ".join(f"--set {key}=VALUE" for key in missing)
        raise RunFolderError(f"run {run_id} was started with secrets, which are not kept; add them again: {options}")
    return [*left, *given]


def _is_set_by(key: str, again: Container[str]) -> bool:
    """Whether a key is among these, or lies below one of them, which is set as a whole."""
    names = key.split(".")
    return any(".".join(names[:length]) in again for length in range(1, len(names) + 1))


def _without_secret(override: str) -> str:
    """Return an override as it can be kept; the value is `***` where a secret is in it.

    The reference to a variable, `os.environ/NAME`, is none.
    """
    key = key_of(override)
    value: Any = read_yaml(override.partition("=")[2])[0]
    if isinstance(value, str) and _REFERENCE.fullmatch(value):
        return override
    first, *below = key.split(".")
    for name in reversed(below):  # where it stands may say what it is: below `headers`, or in a program's environment
        value = {name: value}
    shown = without_secrets(first, value)
    shown = shown if first == "initial_resources" else hide_keys_in(shown)  # a prompt may have what looks like a key
    return override if shown == value else f"{key}={HIDDEN}"


def _data_files(job: Job, folder: Path) -> list[Path]:
    """Return the files that the config names as datasets; modules are found among those that are loaded."""
    sources = [getattr(job.config, key) for key in DATASETS]
    paths = [folder / Path(source).expanduser() for source in sources if isinstance(source, str)]
    return [path for path in paths if path.is_file()]


NOT_INSTALLED = (
    "lightning-sqlite is not installed: this run is kept in memory, and cannot be resumed when its process is killed"
)


def check_output(output: Path | None) -> None:
    """Refuse a file for the result that cannot be there, before a run starts.

    Raises:
        ConfigError: When there is no folder for it.
    """
    if output is not None and not output.resolve().parent.is_dir():
        raise ConfigError(f"--output {output}: there is no folder {output.resolve().parent}")


def run_job(context: click.Context, load: Callable[[Display], Job], options: RunOptions) -> Job:
    """Run a job, and return it; the command ends here where the run does not succeed.

    Args:
        context: Of the command.
        load: Makes the job, which has to tell the display of what happens.
        options: Those of the command.

    Raises:
        LightningError: When the job cannot be made, or its algorithm cannot go on.
    """
    as_json, output = options["as_json"], options["output"]
    resume = with_runs_dir("agl resume", options["runs_dir"])
    output = None if output is None else output.absolute()
    show_warnings(context, verbose=options["verbose"])
    with reporting(as_json=as_json) as display:
        job = load(display)
        announce(display, job)
        stores = {component.name for component in default_registry().components("stores")}
        if "store" not in job.config.model_fields_set and DURABLE not in stores:
            display.console.print(NOT_INSTALLED)
        try:
            result = job.fit()
        except Exception as exc:
            _write_of_failed(display, job.trainer.result, output)
            if _can_be_resumed(job.trainer.result, exc):
                _say_how_to_resume(display, job, resume)
            if isinstance(exc, EOFError | BrokenPipeError):  # click takes these for what happened to its own streams
                raise LightningError(f"{type(exc).__name__}: {exc}") from exc
            raise
        _write(display, result, output)
        if result.status in ("interrupted", "budget"):
            _say_how_to_resume(display, job, resume, result)
        if display.unwritten is not None:
            raise display.unwritten
    if result.status == "interrupted":
        context.exit(INTERRUPTED)
    if result.status == "budget":
        context.exit(BUDGET)
    if result.status == "failed":
        context.exit(1)
    if job.trainer.recording is not None:
        show_conclusion(context, job.trainer.recording.conclusion, as_json=as_json)
    return job


def show_conclusion(context: click.Context, conclusion: Conclusion | None, *, as_json: bool) -> None:
    """Show what an algorithm has come to; the command ends here where that has an exit status other than 0."""
    if conclusion is None:
        return
    if not as_json:
        click.echo(f"\n{conclusion.text}")
    elif conclusion.record is not None:
        click.echo(json.dumps({"event": conclusion.name, **conclusion.record}, ensure_ascii=False))
    if conclusion.exit_status:
        context.exit(conclusion.exit_status)


def run_changed(context: click.Context, config: Path, changes: Mapping[str, Any], options: RunOptions) -> Job:
    """Run the job of a config file with other values, as a run of its own, and return it.

    The command ends here where the run does not succeed.

    Args:
        context: Of the command.
        config: The config file.
        changes: What is set over it last, by key.
        options: Those of the command.

    Raises:
        LightningError: When the job cannot be made, or its algorithm cannot go on.
    """
    check_output(options["output"])
    root = runs_root(options["runs_dir"])
    assignments = [*options["overrides"], *(f"{key}={_as_yaml(value)}" for key, value in changes.items())]

    def load(display: Display) -> Job:
        job = load_job(config, progress=display, overrides=assignments, run_dir=root)
        job.trainer.origin = job_origin(config, job, assignments)
        return job

    return run_job(context, load, options)


def resume_run(context: click.Context, run: str, options: RunOptions, *, force: bool) -> None:
    """Go on with a run; of one that succeeded the result is shown.

    Args:
        context: Of the command.
        run: Its id, the beginning of that, or the path of its folder.
        options: Those of the command.
        force: Whether to go on although something has changed since.

    Raises:
        LightningError: When there is no such run, or it cannot go on.
    """
    check_output(options["output"])
    folder = find_run(runs_root(options["runs_dir"]), run)
    manifest = folder.manifest()
    owner = folder.lock.owner()
    if owner is not None:
        raise RunFolderError(in_use(folder.run_id, owner))
    if manifest.outcome == "succeeded":
        if options["as_json"]:
            click.echo(json.dumps({"event": "run", **run_record(load_run(folder))}))
        else:
            click.echo(f"run {folder.run_id} has succeeded already; there is nothing to do")
            print_run(plain_console(), folder, manifest)
        show_conclusion(context, manifest.conclusion, as_json=options["as_json"])
        return
    if manifest.origin.config_file is None:
        raise RunFolderError(
            f"run {folder.run_id} was started by a program, not with a config file; go on with it there: "
            f"Trainer(run_dir=RunFolder({str(folder.path)!r}), ...)"
        )
    config_file = Path(manifest.origin.config_file)
    require_store(folder, manifest)
    overrides = all_overrides(manifest.origin.overrides, options["overrides"], run_id=folder.run_id)
    options["output"] = None if options["output"] is None else options["output"].absolute()
    if manifest.origin.folder is not None and Path(manifest.origin.folder).is_dir():
        os.chdir(manifest.origin.folder)  # paths in the config may be meant from there

    def load(display: Display) -> Job:
        job = load_job(config_file, progress=display, overrides=overrides, run_dir=folder)
        job.trainer.origin = job_origin(config_file, job, overrides)
        changes = changes_since(manifest.origin, job.trainer.origin)
        if changes and not force:
            raise RunFolderError(
                f"run {folder.run_id} was made of something else: {'; '.join(changes)}. Undo that, or go on all the "
                "same with --force"
            )
        return job

    run_job(context, load, options)


def check_only(context: click.Context, config: Path, options: RunOptions) -> None:
    """Check the job of a config file, print the config with all defaults, and run nothing.

    Raises:
        LightningError: When the job cannot be made.
    """
    check_output(options["output"])
    runs_root(options["runs_dir"])
    show_warnings(context, verbose=options["verbose"])
    if not options["as_json"]:
        click.echo(resolved_config(_checked_job(config, options["overrides"])), nl=False)
        return
    with stdout_for_json() as lines:
        job = _checked_job(config, options["overrides"])
        plan = job.plan()
        lines.write({"event": "config", "config": resolved_values(job), "plan": None if plan is None else str(plan)})


def _checked_job(config: Path, overrides: tuple[str, ...]) -> Job:
    writes_bytecode = not sys.dont_write_bytecode
    sys.dont_write_bytecode = True  # nothing is left behind, not even that of the agent's module
    try:
        job = load_job(config, overrides=overrides, dry_run=True)
    finally:
        sys.dont_write_bytecode = not writes_bytecode
    warn_of_overlap(job.test_dataset, {"train_dataset": job.train_dataset, "val_dataset": job.val_dataset})
    _warn_of_unrecorded(job)
    _warn_of_grader(job)
    return job


def _warn_of_grader(job: Job) -> None:
    """Try the grader on a few answers to three samples, where that needs no model and no trace."""
    grader, dataset = job.grader, job.train_dataset or job.val_dataset
    if dataset is None or (grader is not None and (grader.is_async() or not grader.wanted <= {"task", "result"})):
        return
    if (candidate := candidate_of(job.environment, grader, None)) is not None:
        tasks = [dataset[index] for index in range(min(3, len(dataset)))]
        for finding in asyncio.run(check_grader(candidate, tasks, junk=JUNK[:1])):
            click.echo(f"Warning: the grader {finding.what} ({finding.count} of {len(tasks)}); try agl check", err=True)


def _warn_of_unrecorded(job: Job) -> None:
    """Say which of the model clients that the agent imports is not recorded, unless calls go through a proxy."""
    clients = job.trainer.tracer.unrecorded_clients()
    if clients and job.trainer.llm_proxy is None:
        click.echo(f"Warning: calls of {', '.join(clients)} will not be recorded. {how_to_record(clients)}", err=True)


def _as_yaml(value: Any) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=float("inf"), sort_keys=False)
    return text.removesuffix("...\n").strip()


def _write(display: Display, result: FitResult, output: Path | None) -> None:
    if output is not None:
        write_result(output, result)
        display.console.print(f"result written to {output}")


def _write_of_failed(display: Display, result: FitResult | None, output: Path | None) -> None:
    """Write the known result of a run that raised. Its exception is the error of the command."""
    if result is None:
        return
    try:
        _write(display, result, output)
    except LightningError as exc:
        click.echo(f"Error: {exc}", err=True)


def _can_be_resumed(result: FitResult | None, error: Exception) -> bool:
    """Whether going on with a run that raised may help: not where its config is wrong, or nothing has succeeded yet."""
    return not isinstance(error, ConfigError | InvalidInput) and (result is None or result.rollouts.succeeded > 0)


def _say_how_to_resume(display: Display, job: Job, resume: str, result: FitResult | None = None) -> None:
    if job.trainer.recording is not None and not isinstance(job.trainer.store, InMemoryLightningStore):
        origin = job.trainer.origin or Origin()
        more = "".join(f" --set {key}=VALUE" for key in hidden_keys(origin.overrides))
        more += "" if result is None else more_budget(result.budget, origin.config)
        display.console.print(f"go on with it: {resume} {job.trainer.recording.folder.run_id}{more}")
