"""`agl train`: run what a config file describes."""

import sys
from pathlib import Path

import click

from lightning_core.errors import ConfigError


@click.command()
@click.argument("config", type=click.Path(path_type=Path))
@click.option(
    "--set",
    "overrides",
    metavar="KEY=VALUE",
    multiple=True,
    help="Set a value over that of the file, as algorithm.beam_width=2. The value is YAML. Can be repeated.",
)
@click.option("--dry-run", is_flag=True, help="Check everything, print the config with all defaults, and run nothing.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the result (metrics and best resources, without keys) to this JSON file.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="Write events as lines of JSON to stdout, and all else to stderr."
)
@click.pass_context
def train(
    context: click.Context,
    config: Path,
    overrides: tuple[str, ...],
    dry_run: bool,
    output: Path | None,
    as_json: bool,
) -> None:
    """Make the agent of a CONFIG file better.

    The exit status is 0 when the run succeeded, 1 when it failed, 2 when the command or the config is wrong, 130
    when it was interrupted; then the best so far is shown.

    \b
    Example:
      agl train config.yaml
      agl train config.yaml --set algorithm.beam_width=2 --set n_runners=16
      agl train config.yaml --dry-run
      agl train config.yaml --json > events.jsonl
    """
    # Imported here, so that listing the commands stays fast.
    from lightning_core.cli import INTERRUPTED
    from lightning_core.cli.display import announce, reporting
    from lightning_core.cli.logs import show_warnings
    from lightning_core.cli.summary import print_summary, result_record, write_result
    from lightning_core.config import load_job

    if output is not None and not output.resolve().parent.is_dir():
        raise ConfigError(f"--output {output}: there is no folder {output.resolve().parent}")
    show_warnings(context)
    if dry_run:
        _print_resolved(config, overrides)
        return
    with reporting("json" if as_json else "auto") as display:
        job = load_job(config, hooks=[display], overrides=overrides)
        announce(display, job)
        result = job.fit()
        if output is not None:
            write_result(output, result)  # before anything is printed, which may fail
        if display.json is not None:
            display.json.write({"event": "result", **result_record(result)})
        else:
            usage = display.standing.snapshot().usage
            print_summary(display.console, result, job.trainer.initial_resources, usage=usage, store=job.trainer.store)
        if output is not None:
            display.console.print(f"result written to {output}")
    if result.status == "interrupted":
        context.exit(INTERRUPTED)
    if result.status == "failed":
        context.exit(1)


def _print_resolved(config: Path, overrides: tuple[str, ...]) -> None:
    from lightning_core.config import load_job, resolved_config

    writes_bytecode = not sys.dont_write_bytecode
    sys.dont_write_bytecode = True  # nothing is left behind, not even that of the agent's module
    try:
        job = load_job(config, overrides=overrides, dry_run=True)
    finally:
        sys.dont_write_bytecode = not writes_bytecode
    click.echo(resolved_config(job), nl=False)
