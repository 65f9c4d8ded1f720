"""`agl train` and `agl resume`: run what a config file describes, and go on with it."""

from pathlib import Path

import click

from lightning_core.cli.options import RunOptions, run_options


@click.command()
@click.argument("config", type=click.Path(path_type=Path))
@click.option("--dry-run", is_flag=True, help="Check everything, print the config with all defaults, and run nothing.")
@run_options(
    overrides="Set a value over that of the file, as algorithm.beam_width=2. The value is YAML. Can be repeated."
)
@click.pass_context
def train(context: click.Context, config: Path, dry_run: bool, options: RunOptions) -> None:
    """Make the agent of a CONFIG file better.

    The exit status is 0 when the run succeeded, 1 when it failed, 2 when the command or the config is wrong, 3 when
    its budget was used up, 130 when it was interrupted; then the best so far is shown. The run has a folder, from
    which agl resume goes on.

    \b
    Example:
      agl train config.yaml
      agl train config.yaml --set algorithm.beam_width=2 --set n_runners=16
      agl train config.yaml --set budget.usd=5 --set budget.seconds=3600
      agl train config.yaml --dry-run
      agl train config.yaml --json > events.jsonl
    """
    # Imported here, as below, so that listing the commands stays fast.
    from lightning_core.cli.job import check_only, run_changed

    if dry_run:
        check_only(context, config, options)
    else:
        run_changed(context, config, {}, options)


@click.command()
@click.argument("run")
@click.option("--force", is_flag=True, help="Go on although the config, the code or versions have changed since.")
@run_options(
    overrides="Set a value over those that the run was started with: a secret, which was not kept. Can be repeated."
)
@click.pass_context
def resume(context: click.Context, run: str, force: bool, options: RunOptions) -> None:
    """Go on with a RUN that was killed, interrupted or failed.

    Rollouts that have ended are not run again, and the algorithm continues from its last saved step. RUN is an id, the
    beginning of one, or the path of its folder. Of a run that succeeded the result is shown, and nothing is done. The
    exit status is that of agl train, or of agl gate when the run is one of it.

    \b
    Example:
      agl resume run-3f2a
      agl resume 3f2a --force
    """
    from lightning_core.cli.job import resume_run

    resume_run(context, run, options, force=force)
