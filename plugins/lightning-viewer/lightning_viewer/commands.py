"""`agl report` writes the report of a run; `agl show`, `agl compare` and `agl top` show runs in the terminal."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lightning_core.cli.options import runs_dir_option, runs_root

if TYPE_CHECKING:
    from lightning_viewer.compare import Side


@click.command()
@click.argument("run", required=False)
@click.argument("other", required=False)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Where to write it; by default in the run's folder.",
)
@click.option("--no-traces", is_flag=True, help="Leave out what was said: no conversation, no span.")
@click.option("--redact", is_flag=True, help="Replace each text by its length; numbers, names and ids stay.")
@runs_dir_option
def report(
    run: str | None, other: str | None, output: Path | None, no_traces: bool, redact: bool, runs_dir: Path | None
) -> None:
    """Write a RUN as one HTML file, which needs no network.

    Without RUN it is the latest one. With OTHER, an earlier run, it has a page that compares the two sample by sample.

    Every run writes it at its end, unless it is interrupted. It has as many rollouts as fit, and up to 200 traces.

    \b
    Example:
      agl report
      agl report run-3f2a --redact -o for-everyone.html
    """
    import asyncio

    from lightning_core.runs.stored import copied, find
    from lightning_viewer import compare as comparing
    from lightning_viewer.collect import MAX_TRACES, collect
    from lightning_viewer.redaction import redacted
    from lightning_viewer.report import REPORT_FILE, write_report

    folder = find(runs_root(runs_dir), run)
    compared = None if other is None else find(runs_root(runs_dir), other)

    async def write() -> Path:
        async with copied(folder) as store:
            data = await collect(folder, store, max_traces=0 if no_traces else MAX_TRACES)
            if compared is not None:
                after = await comparing.read_side(folder, store)
                async with copied(compared) as before:
                    earlier = await comparing.read_side(compared, before)
                data["compared"] = comparing.most_changed(comparing.compare(earlier, after))
        path = output or folder.path / REPORT_FILE
        write_report(redacted(data) if redact else data, path)
        return path

    click.echo(asyncio.run(write()))


@click.command()
@click.argument("run", required=False)
@click.argument("rollout", required=False)
@click.option("--failed", is_flag=True, help="Only rollouts that gave no reward, by their cause.")
@click.option(
    "-n", "--limit", type=click.IntRange(min=0), default=20, show_default=True, help="How many rollouts to show."
)
@click.option("--full", is_flag=True, help="Show the texts of the ROLLOUT whole, and all messages and attributes.")
@click.option("--json", "as_json", is_flag=True, help="Write the manifest of the run, with how it stands, as JSON.")
@runs_dir_option
def show(
    run: str | None,
    rollout: str | None,
    failed: bool,
    limit: int,
    full: bool,
    as_json: bool,
    runs_dir: Path | None,
) -> None:
    """Show a RUN with its rollouts, or the trace of one ROLLOUT.

    The worst rollouts are first. Without RUN it is the latest one. RUN and ROLLOUT are ids, or the beginnings of them.
    A run that goes on is shown as it is at that moment.

    \b
    Example:
      agl show
      agl show run-3f2a --failed
      agl show run-3f2a ro-91c4 --full
    """
    import asyncio
    import json

    from lightning_core.cli.console import plain_console
    from lightning_core.cli.run_report import print_run
    from lightning_core.runs.recording import read_best
    from lightning_core.runs.stored import copied, find
    from lightning_viewer.reading import read_aggregates
    from lightning_viewer.report import REPORT_FILE
    from lightning_viewer.terminal import print_before_and_after, print_failed, print_rollout, print_rollouts

    if rollout is not None and (as_json or failed):
        raise click.UsageError(f"{'--json' if as_json else '--failed'} is about the run; leave ROLLOUT out")
    if rollout is None and full:
        raise click.UsageError("--full is about one rollout; give a RUN and a ROLLOUT")
    folder = find(runs_root(runs_dir), run)
    manifest = folder.manifest()
    if as_json:
        record = {"standing": folder.standing(manifest), **manifest.model_dump(mode="json")}
        click.echo(json.dumps(record, indent=2, ensure_ascii=False))
        return
    console = plain_console()
    if rollout is None:
        print_run(console, folder, manifest)
        if not folder.store_file.is_file():
            console.print("its rollouts are not known here: it has no store in its folder")
            if manifest.store != "memory":
                console.print(
                    f"look into its {manifest.store} with: agl serve store --backend ... --run {folder.run_id}"
                )
            return
        if folder.standing(manifest) != "running" and not (folder.path / REPORT_FILE).is_file():
            console.print()
            console.print(f"it has no report yet; write it with: agl report {folder.run_id}")

    async def print_it() -> None:
        async with copied(folder) as store:
            if rollout is not None:
                await print_rollout(console, store, rollout, full=full)
                return
            known = await read_aggregates(store)
        if failed:
            print_failed(console, known, limit=limit)
        else:
            print_before_and_after(console, known, folder.run_id, best=read_best(folder.best_file), limit=limit)
            print_rollouts(console, known, limit=limit)

    asyncio.run(print_it())


@click.command()
@click.argument("before")
@click.argument("after")
@click.option(
    "-n", "--limit", type=click.IntRange(min=0), default=20, show_default=True, help="How many samples to show."
)
@click.option("--json", "as_json", is_flag=True, help="Write a JSON object with all samples instead.")
@runs_dir_option
def compare(before: str, after: str, limit: int, as_json: bool, runs_dir: Path | None) -> None:
    """Compare two runs sample by sample, with intervals.

    Each is RUN or RUN:VERSION. Without VERSION it is the best version of the run's resources; else first, best, v2 or
    the beginning of a resources id.

    \b
    Example:
      agl compare run-3f2a run-91c4
      agl compare run-3f2a:first run-3f2a:best
    """
    import asyncio
    import json

    from lightning_core.cli.console import plain_console, to_json
    from lightning_core.runs.stored import copied, find
    from lightning_viewer import compare as comparing
    from lightning_viewer.terminal import print_comparison

    root = runs_root(runs_dir)

    async def side(run: str, version: str | None) -> "Side":
        folder = find(root, run)
        async with copied(folder) as store:
            return await comparing.read_side(folder, store, version)

    async def both() -> dict[str, Any]:
        return comparing.compare(await side(*_run_and_version(before)), await side(*_run_and_version(after)))

    found = asyncio.run(both())
    if as_json:
        click.echo(json.dumps(to_json(found), indent=2, ensure_ascii=False))
    else:
        print_comparison(plain_console(), found, limit=limit)


@click.command()
@click.argument("run", required=False)
@click.option(
    "--store", "url", metavar="URL", help="Look at the run of a store's server instead, as agl serve store prints it."
)
@runs_dir_option
def top(run: str | None, url: str | None, runs_dir: Path | None) -> None:
    """Watch a RUN that goes on elsewhere, in the terminal.

    Without RUN it is the latest one. It looks about every second, at a copy of the run's store, so that the run does
    not wait for it; a server tells it when there is something new. It ends with the run, or at Ctrl-C. Where stdout is
    not a terminal, it looks once.

    \b
    Example:
      agl top
      agl top --store http://127.0.0.1:4747
    """
    import asyncio

    from lightning_core.cli.console import plain_console
    from lightning_core.errors import ConfigError
    from lightning_core.runs.stored import find
    from lightning_viewer.top import looks_at_folder, looks_at_store, watch

    if run is not None and url is not None:
        raise ConfigError(f"--store {url} has its own run; leave {run} out")
    looks = looks_at_folder(find(runs_root(runs_dir), run)) if url is None else looks_at_store(url)
    asyncio.run(watch(plain_console(), looks))


def _run_and_version(given: str) -> tuple[str, str | None]:
    run, colon, version = given.rpartition(":")
    return (run, version) if colon and not Path(given).is_dir() else (given, None)
