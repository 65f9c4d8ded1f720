"""`agl serve legacy` lets agents that know only 0.1's or 0.2's protocol work for a run of today."""

import click

from lightning_core.errors import ConfigError

CONNECT_SECONDS = 5.0
"""How long to look for the store, at the beginning and later."""


@click.command()
@click.option("--store", "url", required=True, metavar="URL", help="Where the run's store is served.")
@click.option("--run", "run_id", help="The run; without it, the one that is served there.")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="The port; 0 lets the system choose."
)
@click.option(
    "--key",
    envvar="AGL_LEGACY_KEY",
    help="What agents have to say, by http://agent:KEY@host:port. The variable AGL_LEGACY_KEY is better: a command "
    "line can be seen.",
)
@click.option("--task-timeout", default=300.0, show_default=True, help="How many seconds an agent may take for a task.")
def legacy(url: str, run_id: str | None, host: str, port: int, key: str | None, task_timeout: float) -> None:
    """Serve a run to agents of agentlightning 0.1 and 0.2.

    The store of the run is served elsewhere. It ends with the run, when its store cannot be reached any more, and by
    Ctrl-C.

    \b
    Example:
      agl serve legacy --store http://127.0.0.1:4747 --port 9999
    """
    # Imported here, so that listing the commands stays fast.
    import asyncio
    import signal

    from lightning_http import LightningStoreClient

    from lightning_core.errors import StoreError
    from lightning_legacy.server import AgentLightningServer

    if not task_timeout > 0:
        raise ConfigError(f"--task-timeout is {task_timeout:g}; it is more than 0 seconds")

    async def serve() -> None:
        store = LightningStoreClient(url, run_id=run_id, retry_seconds=CONNECT_SECONDS)
        server = AgentLightningServer(host, port, task_timeout, store=store, key=key)
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, server.no_more.set)
        try:
            await store.statistics()
        except StoreError as exc:
            await store.aclose()
            raise ConfigError(f"{exc}; --store names the store of a run, and AGL_KEY has its key") from exc
        async with store, server:
            click.echo(f"agents of run {store.run_id} fetch their tasks at {server.endpoint}")
            await server.no_more.wait()

    asyncio.run(serve())
