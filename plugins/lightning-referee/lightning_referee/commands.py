"""`agl referee`: lets another program improve an agent, and judges what it submits."""

from pathlib import Path
from typing import Any

import click
from lightning_evals.commands import range_option

from lightning_core.cli.options import RunOptions, run_options
from lightning_referee import KEY_VARIABLE, PORT


@click.command()
@click.argument("config", type=click.Path(path_type=Path))
@click.option(
    "--max-candidates",
    type=click.IntRange(min=1),
    default=100,
    show_default=True,
    help="How many candidates can be submitted.",
)
@click.option(
    "--max-challenges",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    help="How many of them can be compared on validation samples; with few ones, smaller gains are shown.",
)
@click.option(
    "--texts",
    is_flag=True,
    help="Tell inputs, messages and errors of training samples, too. What an agent wrote may try to instruct who reads "
    "it.",
)
@range_option
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--port", type=click.IntRange(1, 65535), default=PORT, show_default=True, help="The port to listen on.")
@run_options()
@click.pass_context
def referee(
    context: click.Context, /, config: Path, reward_range: tuple[float, float], options: RunOptions, **given: Any
) -> None:
    """Let other programs improve prompts, over HTTP and MCP.

    The prompts are those of a CONFIG file. A program submits candidates, and is told how they do on training samples. A
    few of them can challenge the best one on validation samples, which it never sees; it is told whether they are
    better. When it finishes, its choice is measured on the test samples. The config's algorithm is not run. Whoever
    submits needs the key in AGL_REFEREE_KEY.

    \b
    Example:
      export AGL_REFEREE_KEY=$(openssl rand -hex 16)
      agl referee config.yaml
      agl referee config.yaml --max-candidates 50 --max-challenges 1
    """
    # Imported here, so that listing the commands stays fast.
    from lightning_http.web_pages import url_of

    from lightning_core.cli.job import run_changed
    from lightning_referee.algorithm import Referee

    low, high = reward_range
    url = url_of(given["host"], given["port"])
    click.echo(f"referee at {url}, for MCP at {url}/mcp; the key is in {KEY_VARIABLE}", err=True)
    algorithm = {"name": "lightning_referee.algorithm:Referee", "low": low, "high": high, **given}
    job = run_changed(context, config, {"algorithm": algorithm}, options)
    assert isinstance(job.trainer.algorithm, Referee)
    click.echo(job.trainer.algorithm.choice, err=True)
