"""`agl ui`: the live page of a run."""

import signal
from pathlib import Path

import click

from lightning_core.cli.options import runs_dir_option, runs_root
from lightning_core.errors import ConfigError

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""The signals that end `agl ui`, which then removes its copy of the store."""


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

    if run is not None and url is not None:
        raise ConfigError("give a RUN, or --store URL, not both")
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

    from lightning_http.auth import Keys
    from lightning_http.listener import Listener, bind
    from lightning_http.web_pages import require_key

    from lightning_core.errors import StoreError
    from lightning_core.registry import default_registry
    from lightning_core.runs.stored import find
    from lightning_core.store import LightningStore
    from lightning_viewer.live import Live
    from lightning_viewer.routes import page_app

    require_key(host, key, what="the page", give="--key or AGL_KEY")
    closing = asyncio.Event()
    store: LightningStore | None = None
    if url is None:
        live = Live(folder=find(root, run), root=root, closing=closing)
    else:
        options = {"name": "http", "url": url, "key": key or "", "retry_seconds": 1.0}
        store = default_registry().build("stores", options, expected=LightningStore)
        live = Live(store, closing=closing)
    try:
        try:
            await live.look()
        except StoreError as exc:
            raise ConfigError(str(exc)) from exc
        bound = bind(host, port)
        number = bound.getsockname()[1]
        listener = Listener(page_app(live, Keys(key)), bound)
        loop = asyncio.get_running_loop()
        for each in ENDING:
            loop.add_signal_handler(each, closing.set)
        await listener.open()
        try:
            shown = f"[{host}]" if ":" in host else host
            click.echo(f"run {live.run_id} at http://{shown}:{number}/ (Ctrl-C ends it)")
            await closing.wait()
        finally:
            closing.set()
            await listener.close(seconds=1.0)
            for each in ENDING:
                loop.remove_signal_handler(each)
    finally:
        await live.aclose()
        if store is not None:
            await store.aclose()
