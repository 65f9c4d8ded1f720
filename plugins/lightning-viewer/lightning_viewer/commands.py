"""`agl report` and `agl ui` show a run in a browser; `agl show`, `agl compare` and `agl top` in the terminal.

`agl run` runs one task, and shows its trace.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lightning_core.cli.options import runs_dir_option, runs_root, verbose_option
from lightning_core.errors import ConfigError

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
    from lightning_viewer.report import REPORT_FILE, redacted, write_report

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
    from lightning_core.runs.stored import copied, find
    from lightning_viewer.reading import read_aggregates
    from lightning_viewer.report import REPORT_FILE
    from lightning_viewer.terminal import print_failed, print_rollout, print_rollouts

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
            print_rollouts(console, known, limit=limit)
            if known.version_count > 1 and folder.best_file.is_file():
                console.print(f"what a better version changed: agl compare {folder.run_id}:first {folder.run_id}:best")

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

    Each is RUN or RUN:VERSION. Without VERSION it is the best version of the run's resources; else first, best or v2.

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

    comparison = asyncio.run(both())
    if as_json:
        click.echo(json.dumps(to_json(comparison), indent=2, ensure_ascii=False))
    else:
        print_comparison(plain_console(), comparison, limit=limit)


@click.command()
@click.argument("run", required=False)
@click.option(
    "--store", "url", metavar="URL", help="Look at the run of a store's server instead, as agl serve store prints it."
)
@runs_dir_option
def top(run: str | None, url: str | None, runs_dir: Path | None) -> None:
    """Watch a RUN that goes on elsewhere, in the terminal.

    Without RUN it is the latest one. It looks about every second, at a copy of the run's store, so that the run does
    not wait for it; with --store it asks the server. It ends with the run, or at Ctrl-C. Where stdout is not a
    terminal, it looks once.

    \b
    Example:
      agl top
      agl top --store http://127.0.0.1:4747
    """
    import asyncio
    import os

    from lightning_core.cli.console import plain_console
    from lightning_core.model_proxy import KEY_VARIABLE
    from lightning_viewer.live import opened
    from lightning_viewer.top import watch

    async def look() -> None:
        async with opened(run, url, root=runs_root(runs_dir), key=os.environ.get(KEY_VARIABLE)) as live:
            await watch(plain_console(), live)

    asyncio.run(look())


@click.command()
@click.argument("run", required=False)
@click.option("--store", "url", metavar="URL", help="Look into the store that is served there.")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--port", default=0, show_default=True, help="The port; 0 lets the system choose.")
@click.option(
    "--key",
    help="What the page asks for, on this machine, too, and what a store at --store is told. The variable AGL_KEY is "
    "better: a command line can be seen.",
)
@runs_dir_option
@click.pass_context
def ui(
    context: click.Context,
    run: str | None,
    url: str | None,
    host: str,
    port: int,
    key: str | None,
    runs_dir: Path | None,
) -> None:
    """Show a RUN in a browser, also while it goes on. Without RUN, the latest one.

    The page is served until Ctrl-C. It reads copies of the run's store, so the run is not disturbed. With --store it
    reads, and acts on, the store that is served at URL.

    \b
    Example:
      agl ui
      agl ui run-3f2a --port 8000
      AGL_KEY=secret agl ui --store http://10.0.0.5:4747
    """
    # Imported here, so that listing the commands stays fast.
    import asyncio
    import os

    from lightning_core.cli.console import show_warnings
    from lightning_core.model_proxy import KEY_VARIABLE

    if key == "":
        raise ConfigError("--key is empty; give a key, or leave --key out")
    show_warnings(context)
    try:
        import lightning_http  # noqa: F401
    except ModuleNotFoundError as exc:
        raise ConfigError("agl ui needs lightning-http, which is not installed; agl report needs only this") from exc
    asyncio.run(_serve(run, url, host, port, key or os.environ.get(KEY_VARIABLE) or None, runs_root(runs_dir)))


async def _serve(run: str | None, url: str | None, host: str, port: int, key: str | None, root: Path) -> None:
    import asyncio
    import signal

    from lightning_http.auth import Keys
    from lightning_http.listener import Listener, bind
    from lightning_http.web_pages import require_key

    from lightning_viewer.live import opened
    from lightning_viewer.routes import page_app

    require_key(host, key, what="the page", give="--key or AGL_KEY")
    ending = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # with the copy of the store removed
    closing = asyncio.Event()
    async with opened(run, url, root=root, key=key, closing=closing) as live:
        bound = bind(host, port)
        number = bound.getsockname()[1]
        listener = Listener(page_app(live, Keys(key)), bound)
        loop = asyncio.get_running_loop()
        for each in ending:
            loop.add_signal_handler(each, closing.set)
        await listener.open()
        try:
            shown = f"[{host}]" if ":" in host else host
            click.echo(f"run {live.run_id} at http://{shown}:{number}/ (Ctrl-C ends it)")
            await closing.wait()
        finally:
            closing.set()
            await listener.close(seconds=1.0)
            for each in ending:
                loop.remove_signal_handler(each)


def _run_and_version(given: str) -> tuple[str, str | None]:
    run, colon, version = given.rpartition(":")
    return (run, version) if colon and not Path(given).is_dir() else (given, None)


@click.command()
@click.argument("agent", required=False)
@click.option(
    "--task",
    required=True,
    metavar="JSON",
    help="The task: JSON, a plain text, or @FILE of either; @- reads stdin.",
)
@click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Take the initial resources, hooks, grader and limits of this config file, and its agent if none is named.",
)
@click.option("--prompt", metavar="TEXT", help="Use this prompt, or that of @FILE, as the one prompt: main_prompt.")
@click.option("--json", "as_json", is_flag=True, help="Write one line of JSON to stdout, and all else to stderr.")
@verbose_option
@click.pass_context
def run(context: click.Context, /, **given: Any) -> None:
    """Run one task, and show what the agent did as a tree.

    AGENT is module:object or file.py:object. The exit status is 0 when the agent did the task, with or without a
    reward, 1 when it failed, 2 when the command is wrong, 130 when it was interrupted.

    \b
    Example:
      agl run agent.py:solve --task '{"question": "1 + 1?"}' --prompt 'Answer: {question}'
      agl run my_package.agent:solve --task @task.json --json
      agl run --config config.yaml --task 'a plain text'
    """
    from lightning_viewer.one_task import run_one  # late: listing the commands stays fast

    run_one(context, **given)
