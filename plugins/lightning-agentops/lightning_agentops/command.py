"""`agl agentops`: take what AgentOps' SDK sends."""

import click

from lightning_core.errors import ConfigError

DEFAULT_PORT = 4749


@click.command()
@click.option("--store", "url", required=True, metavar="URL", help="Where the run's store is served.")
@click.option(
    "--key",
    help="The store's key: the algorithm's, not the runners'. AGL_KEY is better: a command line can be seen.",
)
@click.option("--run", "run_id", help="The run; without it, the one that is served there.")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--port", default=DEFAULT_PORT, show_default=True, help="The port; 0 lets the system choose.")
def agentops(url: str, key: str | None, run_id: str | None, host: str, port: int) -> None:
    """Take what programs with agentops.init() report into a store.

    It ends by SIGTERM or Ctrl-C. A program learns of it by AGENTOPS_API_ENDPOINT and AGENTOPS_EXPORTER_ENDPOINT.
    Nothing goes on to AgentOps. The exit status is 0, or 2 when the command is wrong or the store cannot be reached.

    \b
    Example:
      AGL_KEY=secret agl agentops --store http://127.0.0.1:4747
    """
    # Imported here, so that listing the commands stays fast.
    import uvloop

    for option, given, kind in (("--key", key, "key"), ("--run", run_id, "run")):
        if given == "":
            raise ConfigError(f"{option} is empty; give a {kind}, or leave {option} out")
    uvloop.run(_serve(url, key, run_id, host, port))


async def _serve(url: str, key: str | None, run_id: str | None, host: str, port: int) -> None:
    import asyncio
    import signal

    from lightning_http import LightningStoreClient

    from lightning_agentops.ingestion import AgentOpsServer
    from lightning_core.errors import StoreError

    told = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.set)
    # An exporter waits 10 s for its answer, and tries again when it is told that there is no store.
    store = LightningStoreClient(url, key=key, run_id=run_id, retry_seconds=2.0)
    try:
        server = AgentOpsServer(store, host, port, key=key)
        try:
            await store.statistics()  # from then on the store's run is known, too
        except StoreError as exc:
            raise ConfigError(f"the store at {url} cannot be used: {exc}") from exc
        async with server:
            place = f"{server.url}/rollout/ROLLOUT_ID/attempt/ATTEMPT_ID"
            click.echo(f"AgentOps' API for run {store.run_id} at {server.url}; a program of an attempt takes")
            click.echo(f"  AGENTOPS_API_ENDPOINT={place}")
            click.echo(f"  AGENTOPS_EXPORTER_ENDPOINT={place}/v1/traces")
            await told.wait()
    finally:
        await store.aclose()
