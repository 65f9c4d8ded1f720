"""`agl runs`: what was run, how it went, and the way to be rid of it."""

import json
from pathlib import Path
from typing import Any

import click

from lightning_core.cli.options import runs_dir_option, runs_root
from lightning_core.errors import ConfigError


@click.group(invoke_without_command=True)
@runs_dir_option
@click.option("--json", "as_json", is_flag=True, help="Write a JSON list of objects instead of a table.")
@click.pass_context
def runs(context: click.Context, runs_dir: Path | None, as_json: bool) -> None:
    """List the runs, the newest last.

    A run is named by its id, or the beginning of it, with or without run-. One that is killed, interrupted or failed
    can go on: agl resume.

    \b
    Example:
      agl runs
      agl runs rm run-3f2a --yes
    """
    context.obj = runs_dir
    if context.invoked_subcommand is not None:
        return
    from lightning_core.cli.run_report import load_runs, print_runs, run_record

    root = runs_root(runs_dir)
    if runs_dir is not None and not root.exists():
        raise ConfigError(f"--runs-dir is {root}, which is not there; name the folder that runs were kept in")
    loaded, broken = load_runs(root)
    if as_json:
        click.echo(json.dumps([run_record(each) for each in loaded], indent=2))
    else:
        print_runs(loaded)
    for problem in broken:
        click.echo(problem, err=True)


@runs.command(hidden=True)
@click.argument("run")
@runs_dir_option
@click.option("--json", "as_json", is_flag=True, help="Write the manifest, with how the run stands, as JSON.")
@click.pass_obj
def show(outer: Path | None, run: str, runs_dir: Path | None, as_json: bool) -> None:
    """Show the inputs of a RUN, and its result, as `agl show` of lightning-viewer does before all else."""
    from lightning_core.cli.console import plain_console
    from lightning_core.cli.run_report import print_run
    from lightning_core.runs.folder import find_run

    folder = find_run(runs_root(runs_dir or outer), run)
    manifest = folder.manifest()
    if as_json:
        record: dict[str, Any] = {"standing": folder.standing(manifest), **manifest.model_dump(mode="json")}
        click.echo(json.dumps(record, indent=2, ensure_ascii=False))
        return
    print_run(plain_console(), folder, manifest)


@runs.command()
@click.argument("run", nargs=-1, required=True)
@runs_dir_option
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.pass_obj
def rm(outer: Path | None, run: tuple[str, ...], runs_dir: Path | None, yes: bool) -> None:
    """Delete the folder of each RUN, with all that is in it. One that still goes on is refused.

    \b
    Example:
      agl runs rm run-3f2a run-9c
    """
    from lightning_core.runs.folder import find_run

    root = runs_root(runs_dir or outer)
    folders = {folder.path: folder for folder in [find_run(root, each) for each in run]}
    for folder in folders.values():
        folder.check_removable()
        if not yes:
            click.confirm(f"Delete {folder.path} and all that is in it?", abort=True)
        folder.remove()
        click.echo(f"removed {folder.run_id}")
