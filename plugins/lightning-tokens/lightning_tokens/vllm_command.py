"""`agl vllm`: a model served by vLLM, until Ctrl-C."""

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from lightning_tokens.vllm import VLLMServer


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("model")
@click.option("--host", default="127.0.0.1", show_default=True, help="Where to listen.")
@click.option("--port", default=0, help="Where to listen; without it, a free port.")
@click.option("--python", metavar="PATH", help="The interpreter of vLLM's environment; without it, this one.")
@click.option("--start-seconds", default=900.0, show_default=True, help="The longest it may take until it answers.")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def vllm(
    model: str, host: str, port: int, python: str | None, start_seconds: float, arguments: tuple[str, ...]
) -> None:
    """Serve MODEL with vLLM, as training needs it, until Ctrl-C. Further ARGUMENTS are vLLM's own.

    `agl vllm serve MODEL`, as in agentlightning 0.3, is the same.

    \b
    Example:
      agl vllm Qwen/Qwen3-4B --port 8000 --max-model-len 8192
    """
    # Imported here, so that listing the commands stays fast.
    import asyncio

    from lightning_tokens.vllm import VLLMFailed, VLLMServer

    if model == "serve" and arguments:
        model, *rest = arguments
        arguments = tuple(rest)
    server = VLLMServer(model, host=host, port=port, python=python, start_seconds=start_seconds, arguments=arguments)
    try:
        asyncio.run(_serve(server))
    except VLLMFailed as exc:
        raise click.ClickException(str(exc)) from exc
    except KeyboardInterrupt:
        click.echo("stopped")


async def _serve(server: "VLLMServer") -> None:
    async with server:
        click.echo(f"{server.model} is served at {server.url}")
        await server.wait()
