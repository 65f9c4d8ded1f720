"""`agl serve proxy`: stand between agents and models, in a process of its own."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lightning_core.errors import ConfigError

if TYPE_CHECKING:
    from lightning_core.config.files import ConfigFile
    from lightning_core.store import LightningStore

DEFAULT_PORT = 4748

_STORE_SECONDS = 30.0
"""How long each request to the store is repeated while that is out of reach: the first one, and all others."""

_SILENT_SECONDS = 0.5
"""How long the store may take to answer before it is said what is waited for."""


@click.command()
@click.argument("config", type=click.Path(path_type=Path))
@click.option("--store", "store_spec", help="Where calls are recorded: the URL of a store's server. Or `store:` there.")
@click.option("--host", help="The address to listen on; 127.0.0.1 unless the config says another.")
@click.option("--port", type=int, help=f"The port; {DEFAULT_PORT} unless the config says another, 0 for any.")
@click.option(
    "--key", help="The key of the store's server. The variable AGL_KEY is better: a command line can be seen."
)
@click.pass_context
def proxy(
    context: click.Context,
    config: Path,
    store_spec: str | None,
    host: str | None,
    port: int | None,
    key: str | None,
) -> None:
    """Serve the models of a CONFIG file to agents.

    It ends by SIGTERM or Ctrl-C. The file has a `model_list` as LiteLLM has it, and may have `store`, `host`, `port`,
    `budget` and the other options of LLMProxy. The exit status is 0, or 2 when the command or the config is wrong, or
    the store cannot be reached.

    \b
    Example:
      AGL_KEY=secret agl serve proxy models.yaml --store http://127.0.0.1:4747
    """
    # Imported here, so that listing the commands stays fast.
    import uvloop

    from lightning_core.cli.console import show_warnings
    from lightning_core.config.files import read_config

    show_warnings(context)
    file = read_config(config)
    given = {"store": store_spec, "host": host, "port": port, "key": key}
    options = {**_options(file), **{name: value for name, value in given.items() if value is not None}}
    uvloop.run(_serve(options))


def _options(file: "ConfigFile") -> dict[str, Any]:
    """Return what the file says.

    Raises:
        ConfigError: Names the key that there is not, or whose value is wrong, and its line.
    """
    from lightning_core.registry.options import Options
    from lightning_proxy import LLMProxy

    given = {name: value for name, value in file.values.items() if name != "store"}
    if faults := Options(LLMProxy).faults("the proxy", given):
        raise ConfigError("\n".join(f"{file.where((name,))}: {fault}" for name, fault in faults.items()))
    if not isinstance(file.values.get("model_list"), list):
        raise ConfigError(f"{file.where(('model_list',))}: model_list is missing, or no list; it is as LiteLLM has it")
    return dict(file.values)


async def _serve(options: dict[str, Any]) -> None:
    import asyncio
    import signal

    from lightning_proxy import LLMProxy
    from lightning_proxy.running import collect_rarely

    store = _store(options.pop("store", None), options.get("key"))
    served = LLMProxy(store=store, launch_mode="asyncio", **{"port": DEFAULT_PORT, **options})
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    try:
        if store is not None:
            await _reach(store)
        await served.start()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stopping.set)
        collect_rarely()
        click.echo(f"proxy of {', '.join(served.models()) or 'no model'} at {served.url}")
        await stopping.wait()
    finally:
        await served.stop()
        if store is not None:
            await store.aclose()


def _store(spec: Any, key: str | None) -> "LightningStore | None":
    from lightning_core.registry import default_registry
    from lightning_core.store import LightningStore

    if spec is None:
        return None
    if isinstance(spec, str) and spec.startswith(("http://", "https://")):
        from lightning_http import LightningStoreClient

        return LightningStoreClient(spec, key=key, retry_seconds=_STORE_SECONDS)
    return default_registry().build("stores", spec, expected=LightningStore)


async def _reach(store: "LightningStore") -> None:
    """Ask the store for an answer; say so where that takes its time.

    Raises:
        ConfigError: When there is none, with what to do.
    """
    import asyncio

    from lightning_http import LightningStoreClient

    from lightning_core.errors import AccessDenied, StoreError, StoreUnavailable

    if not isinstance(store, LightningStoreClient):
        return
    asked = asyncio.ensure_future(store.statistics())
    try:
        await asyncio.wait((asked,), timeout=_SILENT_SECONDS)
        if not asked.done():
            click.echo(f"waiting for the store at {store.url}, for {_STORE_SECONDS:g} s at most", err=True)
        await asked
    except StoreUnavailable as exc:
        raise ConfigError(
            f"{exc}; is it served there, as by 'agl serve store' or a run, and can its address be reached from here? "
            "--store names another"
        ) from exc
    except AccessDenied as exc:
        raise ConfigError(f"{exc}; give the key of the store's server, with AGL_KEY or --key") from exc
    except StoreError as exc:  # such as a server that is none of a store
        raise ConfigError(str(exc)) from exc
    finally:
        asked.cancel()
