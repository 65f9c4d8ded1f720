"""`agl train`: run what a config file describes."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import click

from lightning_core.cli.options import RunOptions, run_options, runs_root

if TYPE_CHECKING:
    from lightning_core.config import Job


@click.command()
@click.argument("config", type=click.Path(path_type=Path))
@click.option("--dry-run", is_flag=True, help="Check everything, print the config with all defaults, and run nothing.")
@run_options(
    overrides="Set a value over that of the file, as algorithm.beam_width=2. The value is YAML. Can be repeated."
)
@click.pass_context
def train(
    context: click.Context,
    config: Path,
    dry_run: bool,
    **options: Unpack[RunOptions],
) -> None:
    """Make the agent of a CONFIG file better.

    The exit status is 0 when the run succeeded, 1 when it failed, 2 when the command or the config is wrong, 3 when
    its budget was used up, 130 when it was interrupted; then the best so far is shown. The run has a folder, from
    which agl resume goes on.

    \b
    Example:
      agl train config.yaml
      agl train config.yaml --set algorithm.beam_width=2 --set n_runners=16
      agl train config.yaml --set budget.usd=5 --set budget.seconds=3600
      agl train config.yaml --dry-run
      agl train config.yaml --json > events.jsonl
    """
    # Imported here, so that listing the commands stays fast.
    from lightning_core.cli.console import show_warnings
    from lightning_core.cli.job import check_output, run_changed

    if not dry_run:
        run_changed(context, config, {}, **options)
        return
    check_output(options["output"])
    runs_root(options["runs_dir"])
    show_warnings(context, verbose=options["verbose"])
    _print_resolved(config, options["overrides"], as_json=options["as_json"])


def _print_resolved(config: Path, overrides: tuple[str, ...], *, as_json: bool) -> None:
    from lightning_core.cli.console import stdout_for_json
    from lightning_core.config.job import resolved_config, resolved_values

    if not as_json:
        click.echo(resolved_config(_checked_job(config, overrides)), nl=False)
        return
    with stdout_for_json() as lines:
        job = _checked_job(config, overrides)
        plan = job.plan()
        lines.write({"event": "config", "config": resolved_values(job), "plan": None if plan is None else str(plan)})


def _checked_job(config: Path, overrides: tuple[str, ...]) -> "Job":
    from lightning_core.config import load_job
    from lightning_core.runs.held_out import warn_of_overlap

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


def _warn_of_grader(job: "Job") -> None:
    """Try the grader on a few answers to three samples, where that needs no model and no trace."""
    import asyncio

    from lightning_core.agent.grader_check import JUNK, candidate_of, check_grader

    grader, dataset = job.grader, job.train_dataset or job.val_dataset
    if dataset is None or (grader is not None and (grader.is_async() or not grader.wanted <= {"task", "result"})):
        return
    if (candidate := candidate_of(job.environment, grader, None)) is not None:
        tasks = [dataset[index] for index in range(min(3, len(dataset)))]
        for finding in asyncio.run(check_grader(candidate, tasks, junk=JUNK[:1])):
            click.echo(f"Warning: the grader {finding.what} ({finding.count} of {len(tasks)}); try agl check", err=True)


def _warn_of_unrecorded(job: "Job") -> None:
    """Say which of the model clients that the agent imports is not recorded, unless calls go through a proxy."""
    from lightning_core.runs.first_rollouts import how_to_record

    clients = job.trainer.tracer.unrecorded_clients()
    if clients and job.trainer.llm_proxy is None:
        click.echo(f"Warning: calls of {', '.join(clients)} will not be recorded. {how_to_record(clients)}", err=True)
