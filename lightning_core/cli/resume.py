"""`agl resume`: go on with a run that was killed, interrupted or failed."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import click

from lightning_core.cli.options import RunOptions, run_options, runs_root, with_runs_dir

if TYPE_CHECKING:
    from lightning_core.config import Job
    from lightning_core.display.live import Display
    from lightning_core.runs.folder import RunFolder
    from lightning_core.runs.manifest import Manifest


@click.command()
@click.argument("run")
@click.option("--force", is_flag=True, help="Go on although the config, the code or versions have changed since.")
@run_options(
    overrides="Set a value over those that the run was started with: a secret, which was not kept. Can be repeated."
)
@click.pass_context
def resume(
    context: click.Context,
    run: str,
    force: bool,
    **options: Unpack[RunOptions],
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
    from lightning_core.cli.job import all_overrides, check_output, run_job, show_conclusion
    from lightning_core.config.files import check_overrides
    from lightning_core.errors import RunFolderError
    from lightning_core.runs.folder import find_run, in_use
    from lightning_core.runs.recording import require_store

    check_output(options["output"])
    check_overrides(options["overrides"])
    folder = find_run(runs_root(options["runs_dir"]), run)
    manifest = folder.manifest()
    owner = folder.lock.owner()
    if owner is not None:
        raise RunFolderError(in_use(folder.run_id, owner))
    if manifest.outcome == "succeeded":
        _show_result(folder, manifest, as_json=options["as_json"])
        show_conclusion(context, manifest.conclusion, as_json=options["as_json"])
        return
    config_file = manifest.origin.config_file
    if config_file is None:
        raise RunFolderError(
            f"run {folder.run_id} was started by a program, not with a config file; go on with it there: "
            f"Trainer(run_dir=RunFolder({str(folder.path)!r}), ...)"
        )
    require_store(folder, manifest)
    every = all_overrides(manifest.origin.overrides, options["overrides"], run_id=folder.run_id)
    output = None if options["output"] is None else options["output"].absolute()
    if manifest.origin.folder is not None and Path(manifest.origin.folder).is_dir():
        os.chdir(manifest.origin.folder)  # paths in the config may be meant from there

    def load(display: "Display") -> "Job":
        return _load(folder, manifest, Path(config_file), every, display, force=force)

    run_job(
        context,
        load,
        verbose=options["verbose"],
        as_json=options["as_json"],
        output=output,
        resume=with_runs_dir("agl resume", options["runs_dir"]),
    )


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
