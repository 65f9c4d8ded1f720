"""`agl runs`: what was run, how it went, and the way to be rid of it."""

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import click

from lightning_core.cli.options import runs_dir_option, runs_root
from lightning_core.errors import ConfigError

if TYPE_CHECKING:
    from lightning_core.runs.folder import RunFolder


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


@runs.command()
@click.argument("run", nargs=-1)
@click.option(
    "--older-than",
    metavar="AGE",
    help="All runs that succeeded, and ended so long ago, such as 30d, 12h or 2w.",
)
@runs_dir_option
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.pass_obj
def rm(
    outer: Path | None,
    run: tuple[str, ...],
    older_than: str | None,
    runs_dir: Path | None,
    yes: bool,
) -> None:
    """Delete the folder of each RUN, with all that is in it. One that still goes on is refused.

    \b
    Example:
      agl runs rm run-3f2a run-9c
      agl runs rm --older-than 30d --yes
    """
    from lightning_core.runs.folder import find_run

    if (older_than is None) == (not run):
        raise ConfigError("name runs to remove, or say --older-than AGE; one of the two")
    root = runs_root(runs_dir or outer)
    found = [find_run(root, each) for each in run] if older_than is None else _ended_before(root, older_than)
    if not found:
        click.echo(f"no run succeeded {older_than} ago, or before")
    folders = {folder.path: folder for folder in found}
    for folder in folders.values():
        folder.check_removable()
        if not yes:
            click.confirm(f"Delete {folder.path} and all that is in it?", abort=True)
        folder.remove()
        click.echo(f"removed {folder.run_id}")


_HOURS = {"h": 1, "d": 24, "w": 168}


def _ended_before(root: Path, age: str) -> "list[RunFolder]":
    """Return the runs that succeeded, and ended so long ago."""
    from lightning_core.cli.run_report import load_runs
    from lightning_core.runs.manifest import now

    match = re.fullmatch(r"(\d{1,9})([hdw])", age)
    if match is None:
        raise ConfigError(f"--older-than is {age!r}; it is a number of hours, days or weeks, such as 12h, 30d or 2w")
    since = now().timestamp() - int(match[1]) * _HOURS[match[2]] * 3600
    loaded, _ = load_runs(root)
    return [
        each.folder
        for each in loaded
        if each.standing == "succeeded" and each.manifest.end is not None and each.manifest.end.timestamp() < since
    ]
