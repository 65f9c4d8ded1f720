"""`agl train`: run what a config file describes."""

from pathlib import Path

import click

from lightning_core.errors import ConfigError


@click.command()
@click.argument("config", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the result (metrics and best resources, without keys) to this JSON file.",
)
@click.pass_context
def train(context: click.Context, config: Path, output: Path | None) -> None:
    """Make the agent of a CONFIG file better.

    The exit status is 0 when the run succeeded, 1 when it failed, 2 when the command or the config is wrong, 130
    when it was interrupted; then the best so far is shown.

    \b
    Example:
      agl train examples/quickstart/config.yaml
    """
    # Imported here, so that listing the commands stays fast.
    from lightning_core.cli import INTERRUPTED
    from lightning_core.cli.console import plain_console
    from lightning_core.cli.progress import ProgressDisplay
    from lightning_core.cli.summary import print_summary, write_result
    from lightning_core.config import load_job

    if output is not None and not output.resolve().parent.is_dir():
        raise ConfigError(f"--output {output}: there is no folder {output.resolve().parent}")
    console = plain_console()
    job = load_job(config, hooks=[ProgressDisplay(console)])
    result = job.fit()
    if output is not None:
        write_result(output, result)  # before anything is printed, which may fail
    print_summary(console, result, job.trainer.initial_resources)
    if output is not None:
        console.print(f"result written to {output}")
    if result.status == "interrupted":
        context.exit(INTERRUPTED)
    if result.status == "failed":
        context.exit(1)
