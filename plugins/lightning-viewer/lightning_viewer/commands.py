"""`agl report` writes the report of a run; `agl show` shows a run, its rollouts and a trace in the terminal."""

from pathlib import Path

import click

from lightning_core.cli.options import runs_dir_option, runs_root


@click.command()
@click.argument("run", required=False)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Where to write it; by default in the run's folder.",
)
@click.option("--no-traces", is_flag=True, help="Leave out what was said: no conversation, no span.")
@runs_dir_option
def report(run: str | None, output: Path | None, no_traces: bool, runs_dir: Path | None) -> None:
    """Write the report of a RUN: one HTML file, which needs no network. Without RUN, of the latest one.

    Every run writes it at its end. It has all rollouts, and up to 200 traces.

    \b
    Example:
      agl report
      agl report run-3f2a --no-traces -o for-everyone.html
    """
    import asyncio

    from lightning_viewer.collect import MAX_TRACES, collect
    from lightning_viewer.report import REPORT_FILE, write_report
    from lightning_viewer.stored import find, opened

    folder = find(runs_root(runs_dir), run)

    async def write() -> Path:
        async with opened(folder) as store:
            data = await collect(folder, store, max_traces=0 if no_traces else MAX_TRACES)
        path = output or folder.path / REPORT_FILE
        write_report(data, path)
        return path

    click.echo(asyncio.run(write()))


@click.command()
@click.argument("run", required=False)
@click.argument("rollout", required=False)
@click.option("--failed", is_flag=True, help="Only rollouts that gave no reward.")
@click.option("-n", "--limit", default=20, show_default=True, help="How many rollouts to show.")
@runs_dir_option
def show(run: str | None, rollout: str | None, failed: bool, limit: int, runs_dir: Path | None) -> None:
    """Show a RUN, and its rollouts with the worst first; or the trace of one ROLLOUT. Without RUN, the latest one.

    RUN and ROLLOUT are ids, or the beginnings of them.

    \b
    Example:
      agl show
      agl show run-3f2a --failed
      agl show run-3f2a ro-91c4
    """
    import asyncio

    from lightning_core.cli.console import plain_console
    from lightning_core.cli.run_report import print_run
    from lightning_viewer.stored import find, opened
    from lightning_viewer.terminal import print_rollout, print_rollouts

    folder = find(runs_root(runs_dir), run)

    async def print_it() -> None:
        console = plain_console()
        async with opened(folder) as store:
            if rollout is not None:
                await print_rollout(console, store, rollout)
                return
            print_run(console, folder, folder.manifest())
            await print_rollouts(console, store, only_failed=failed, limit=limit)

    asyncio.run(print_it())
