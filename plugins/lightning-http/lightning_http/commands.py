"""`agl serve store` serves a store; `agl worker` works for a run whose store is served elsewhere."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from lightning_core.cli.options import runs_dir_option, runs_root
from lightning_core.errors import ConfigError, RunEnded, StoreError
from lightning_http.messages import DEFAULT_PORT

PAGE_SIZE = 100
"""How many rollouts are read at once."""


def _not_empty(context: click.Context, option: click.Parameter, value: str | None) -> str | None:
    """Refuse what a variable gives that is not set."""
    if value == "":
        raise ConfigError(f"{option.opts[0]} is empty; give a value, or leave {option.opts[0]} out")
    return value


_AT_LEAST_ONE = click.IntRange(min=1)


@click.group(invoke_without_command=True)
@click.option(
    "--backend", default="memory", show_default=True, help="The store: an installed name, or package.module:Class."
)
@click.option("--path", help="Where the backend keeps its data; for those that have a path.")
@click.option(
    "--uri",
    "--mongo-uri",
    callback=_not_empty,
    envvar="AGL_STORE_URI",
    help="The address of the backend's database; for those that have one. With a password, the variable AGL_STORE_URI "
    "is better: a command line can be seen.",
)
@click.option(
    "--partition", "partition_id", callback=_not_empty, help="The part of the database; for backends that have parts."
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="Another option of the backend; may be given several times.",
)
@click.option(
    "--run", "run_id", callback=_not_empty, help="The run; without it, the latest that has not ended, or a new one."
)
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--port", default=DEFAULT_PORT, show_default=True, help="The port; 0 lets the system choose.")
@click.option(
    "--key",
    callback=_not_empty,
    help="What clients have to say. The variable AGL_KEY is better: a command line can be seen.",
)
@click.option(
    "--runner-key",
    callback=_not_empty,
    help="What runners may say instead: they can claim and report. Or AGL_RUNNER_KEY.",
)
@click.option("--cors-origin", multiple=True, help="A web page's origin that may ask; may be given several times.")
@click.option(
    "--drain-seconds",
    type=click.FloatRange(min=0),
    default=10.0,
    show_default=True,
    help="How long running attempts may go on after SIGTERM.",
)
@click.option(
    "--log-level",
    type=click.Choice(["DEBUG", "INFO", "WARNING", "ERROR"]),
    default="WARNING",
    show_default=True,
    help="The least level of the logs to show.",
)
@click.option("--n-workers", type=_AT_LEAST_ONE, help="Without effect: one process serves.")
@click.pass_context
def store(
    context: click.Context,
    backend: str,
    path: str | None,
    uri: str | None,
    partition_id: str | None,
    settings: tuple[str, ...],
    run_id: str | None,
    host: str,
    port: int,
    key: str | None,
    runner_key: str | None,
    cors_origin: tuple[str, ...],
    drain_seconds: float,
    log_level: str,
    n_workers: int | None,
) -> None:
    """Serve a store over HTTP until SIGTERM or Ctrl-C.

    Started again on the same data, it goes on with the run that it served, unless that has ended.

    Told to end, it gives no more work, running attempts get a little time to end, and the store is closed. The exit
    status is 0, or 2 when the command is wrong.

    \b
    Example:
      AGL_KEY=secret agl serve store --host 0.0.0.0 --backend sqlite --path runs/store.db
      agl store compact runs/store.db
    """
    if context.invoked_subcommand is not None:
        return
    # Imported here, so that listing the commands stays fast.
    import gc
    import sys

    import uvloop

    from lightning_core.cli.console import show_warnings
    from lightning_core.registry import default_registry
    from lightning_core.store.base import LightningStore
    from lightning_core.store.run_end import note_served, served_run
    from lightning_http.metrics import PrometheusMetricsBackend
    from lightning_http.server import LightningStoreServer

    for origin in cors_origin:
        if origin != "*" and re.fullmatch(r"https?://[^\s/]+", origin) is None:
            raise ConfigError(f"--cors-origin is {origin!r}; it is an origin such as https://example.org:8080, or *")
    named = {"path": path, "partition_id": partition_id, "run_id": run_id}
    defaults: dict[str, Any] = {"tracker": PrometheusMetricsBackend()}
    if context.get_parameter_source("uri") is ParameterSource.ENVIRONMENT:
        defaults["uri"] = uri  # it may be there for another store
    else:
        named["uri"] = uri
    options = _options(settings) | {name: value for name, value in named.items() if value is not None}
    show_warnings(context, level=log_level)
    if n_workers is not None and n_workers > 1:
        click.echo("--n-workers has no effect: one process serves; several can serve one database", err=True)

    async def serve() -> None:
        try:
            opened = default_registry().build(
                "stores", {"name": backend, **options}, expected=LightningStore, defaults=defaults
            )
        except StoreError as exc:  # such as a path that is not a database
            raise ConfigError(str(exc)) from exc
        try:
            try:
                served, goes_on = await served_run(opened) if run_id is None else (opened, False)
                server = LightningStoreServer(
                    served,
                    host,
                    port,
                    key=key,
                    runner_key=runner_key,
                    cors_allow_origins=cors_origin,
                    drain_seconds=drain_seconds,
                )
                await note_served(served)
                await server.start()
            except StoreError as exc:  # such as a database that is damaged
                raise ConfigError(str(exc)) from exc
            # A store keeps most of what it makes, so that collecting often finds nothing, and takes half of its time.
            gc.collect()
            gc.freeze()
            gc.set_threshold(100_000, 20, 20)
            # The thread of a database waits so long for its turn, each time that it has called the database.
            sys.setswitchinterval(0.0005)
            click.echo(f"store of run {served.run_id} at {server.url}")
            if goes_on:
                click.echo(f"goes on with run {served.run_id}, which has not ended; --run NAME serves another one")
            await server.run_forever()
        finally:
            await opened.aclose()

    uvloop.run(serve())


@store.command()
@click.argument("source")
@runs_dir_option
def compact(source: str, runs_dir: Path | None) -> None:
    """Give the room of what was deleted back to the disk.

    SOURCE is a run, or the file of a store. Nothing may use the store meanwhile.

    \b
    Example:
      agl store compact run-3f2a
    """
    from lightning_core.registry import default_registry
    from lightning_core.runs.folder import find_run

    path = Path(source)
    if not path.is_file():
        path = find_run(runs_root(runs_dir), source).store_file
    before = _size(path)
    try:
        default_registry().load("stores", "sqlite").compact(path)
    except StoreError as exc:  # such as one that another process uses
        raise ConfigError(str(exc)) from exc
    click.echo(f"{path} has {_size(path) / 1e6:.1f} MB; it had {before / 1e6:.1f} MB")


def _size(path: Path) -> int:
    """Return the bytes of a store, with its log of what is not yet in the file itself."""
    return sum(each.stat().st_size for each in (path, Path(f"{path}-wal")) if each.is_file())


def _options(settings: Iterable[str]) -> dict[str, Any]:
    """Read options of the backend. No value is shown: it may be a secret."""
    from lightning_core.config.files import YamlFault, read_yaml  # late, as all that takes its time

    options: dict[str, Any] = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals or not name.isidentifier():
            raise ConfigError("--set takes KEY=VALUE, as in: --set durability=power")
        try:
            options[name] = read_yaml(text)[0]
        except YamlFault as exc:
            raise ConfigError(f"--set {name}: {exc}; put quotes around a text, as in 'KEY=\"a: b\"'") from exc
    return options


@click.command()
@click.argument("config", type=click.Path(path_type=Path))
@click.option("--store", "url", required=True, metavar="URL", help="Where the run's store is served.")
@click.option(
    "--key", callback=_not_empty, help="What to say to it. The variable AGL_KEY is better: a command line can be seen."
)
@click.option("--run", "run_id", callback=_not_empty, help="The run; without it, the one that is served there.")
@click.option("--n-runners", type=_AT_LEAST_ONE, default=1, show_default=True, help="How many processes to start.")
@click.option(
    "--concurrency",
    type=_AT_LEAST_ONE,
    default=1,
    show_default=True,
    help="How many rollouts each process runs at once.",
)
@click.option(
    "--max-restarts",
    type=click.IntRange(min=0),
    default=10,
    show_default=True,
    help="How many processes to replace when they die.",
)
@click.option(
    "--set",
    "overrides",
    metavar="KEY=VALUE",
    multiple=True,
    help="Set a value over that of the file, as in agl train. Can be repeated.",
)
@click.pass_context
def worker(
    context: click.Context,
    config: Path,
    url: str,
    key: str | None,
    run_id: str | None,
    n_runners: int,
    concurrency: int,
    max_restarts: int,
    overrides: tuple[str, ...],
) -> None:
    """Run the agent of a CONFIG file for a run elsewhere.

    Of the file, the agent, the runner, the tracer, the grader and the hooks are used. The exit status is 0 when the run
    has ended, 1 when the processes died too often or the store was lost, 2 when the command or the config is wrong, 130
    when it was interrupted, 143 after SIGTERM; what was worked on is given back then.

    \b
    Example:
      AGL_KEY=secret agl worker config.yaml --store http://10.0.0.5:4747 --n-runners 4
    """
    # Imported here, so that listing the commands stays fast.
    import asyncio
    from functools import partial

    from lightning_core.cli.console import show_warnings
    from lightning_core.config import load_job
    from lightning_http.pool import join_run, process_context, process_maker

    show_warnings(context)
    # What belongs to the algorithm's side is neither needed nor made.
    datasets = ("train_dataset=null", "val_dataset=null", "test_dataset=null")
    others = ("algorithm=baseline", "adapter=triplet", "store=memory", "strategy=local", "n_runners=null", "loggers=[]")
    job = load_job(config, overrides=[*overrides, *datasets, *others])
    counted = "1 process" if n_runners == 1 else f"{n_runners} processes"

    try:
        asyncio.run(
            join_run(
                job.trainer.runners_side(job.agent),
                url,
                partial(process_maker, context=process_context()),
                key=key,
                run_id=run_id,
                n_runners=n_runners,
                concurrency=concurrency,
                max_restarts=max_restarts,
                on_joined=lambda run_id: click.echo(f"joined run {run_id} at {url} with {counted}"),
            )
        )
    except RunEnded as exc:
        click.echo(str(exc))
        return
    click.echo("the run has ended")
