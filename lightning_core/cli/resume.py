"""`agl resume`: go on with a run that was killed, interrupted or failed."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from lightning_core.cli.options import runs_dir_option, runs_root, verbose_option, with_runs_dir

if TYPE_CHECKING:
    from lightning_core.config import Job
    from lightning_core.display.live import Display
    from lightning_core.runs.folder import RunFolder
    from lightning_core.runs.manifest import Manifest


@click.command()
@click.argument("run")
@click.option("--force", is_flag=True, help="Go on although the config, the code or versions have changed since.")
@click.option(
    "--set",
    "overrides",
    metavar="KEY=VALUE",
    multiple=True,
    help="Set a value over those that the run was started with: a secret, which was not kept. Can be repeated.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the result (metrics and best resources, without keys) to this JSON file.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="Write events as lines of JSON to stdout, and all else to stderr."
)
@runs_dir_option
@verbose_option
@click.pass_context
def resume(
    context: click.Context,
    run: str,
    force: bool,
    overrides: tuple[str, ...],
    output: Path | None,
    as_json: bool,
    verbose: bool,
    runs_dir: Path | None,
) -> None:
    """Go on with a RUN that was killed, interrupted or failed.

    Rollouts that have ended are not run again, and the algorithm continues from its last saved step. RUN is an id, the
    beginning of one, or the path of its folder. Of a run that succeeded the result is shown, and nothing is done. The
    exit status is that of agl train, or of agl gate when the run is one of it.

    \b
    Example:
      agl resume run-3f2a
      agl resume 3f2a --force
    """
    # Imported here, so that listing the commands stays fast.
    from lightning_core.algorithm.gate import Gate
    from lightning_core.algorithm.labels import LabelAgreement
    from lightning_core.cli.gate import end_gate
    from lightning_core.cli.job import all_overrides, check_output, run_job
    from lightning_core.cli.judge import show_agreement
    from lightning_core.config.overrides import check_overrides
    from lightning_core.errors import RunFolderError
    from lightning_core.runs.folder import find_run, in_use
    from lightning_core.runs.recording import require_store

    check_output(output)
    check_overrides(overrides)
    folder = find_run(runs_root(runs_dir), run)
    manifest = folder.manifest()
    owner = folder.lock.owner()
    if owner is not None:
        raise RunFolderError(in_use(folder.run_id, owner))
    if manifest.outcome == "succeeded":
        _show_result(folder, manifest, as_json=as_json)
        return
    config_file = manifest.origin.config_file
    if config_file is None:
        raise RunFolderError(
            f"run {folder.run_id} was started by a program, not with a config file; go on with it there: "
            f"Trainer(run_dir=RunFolder({str(folder.path)!r}), ...)"
        )
    require_store(folder, manifest)
    every = all_overrides(manifest.origin.overrides, overrides, run_id=folder.run_id)
    output = None if output is None else output.absolute()
    if manifest.origin.folder is not None and Path(manifest.origin.folder).is_dir():
        os.chdir(manifest.origin.folder)  # paths in the config may be meant from there

    def load(display: "Display") -> "Job":
        return _load(folder, manifest, Path(config_file), every, display, force=force)

    job = run_job(
        context, load, verbose=verbose, as_json=as_json, output=output, resume=with_runs_dir("agl resume", runs_dir)
    )
    if isinstance(job.trainer.algorithm, Gate):
        end_gate(context, job.trainer.algorithm, as_json=as_json)
    if isinstance(job.trainer.algorithm, LabelAgreement) and not as_json:
        show_agreement(job.trainer.algorithm)


def _load(
    folder: "RunFolder",
    manifest: "Manifest",
    config_file: Path,
    overrides: list[str],
    display: "Display",
    *,
    force: bool,
) -> "Job":
    from lightning_core.cli.job import job_origin
    from lightning_core.config import load_job
    from lightning_core.errors import RunFolderError
    from lightning_core.runs.manifest import changes_since

    job = load_job(config_file, progress=display, overrides=overrides, run_dir=folder)
    job.trainer.origin = job_origin(config_file, job, overrides)
    changes = changes_since(manifest.origin, job.trainer.origin)
    if changes and not force:
        raise RunFolderError(
            f"run {folder.run_id} was made of something else: {'; '.join(changes)}. Undo that, or go on all the same "
            "with --force"
        )
    return job


def _show_result(folder: "RunFolder", manifest: "Manifest", *, as_json: bool) -> None:
    import json

    from lightning_core.cli.console import plain_console
    from lightning_core.cli.run_report import load_run, print_run, run_record

    if as_json:
        click.echo(json.dumps({"event": "run", **run_record(load_run(folder))}))
        return
    click.echo(f"run {folder.run_id} has succeeded already; there is nothing to do")
    print_run(plain_console(), folder, manifest)
