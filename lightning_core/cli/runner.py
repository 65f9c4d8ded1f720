"""`agl runner`: work for a run whose store is served somewhere else."""

from pathlib import Path

import click

from lightning_core.errors import ConfigError, RunEnded


@click.command()
@click.argument("config", type=click.Path(path_type=Path))
@click.option("--store", "url", required=True, metavar="URL", help="Where the run's store is served.")
@click.option("--key", help="What to say to it. The variable AGL_KEY is better: a command line can be seen.")
@click.option("--run", "run_id", help="The run; without it, the one that is served there.")
@click.option("--n-runners", default=1, show_default=True, help="How many processes to start.")
@click.option("--concurrency", default=1, show_default=True, help="How many rollouts each process runs at once.")
@click.option("--max-restarts", default=10, show_default=True, help="How many processes to replace when they die.")
@click.option(
    "--set",
    "overrides",
    metavar="KEY=VALUE",
    multiple=True,
    help="Set a value over that of the file, as in agl train. Can be repeated.",
)
@click.pass_context
def runner(
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
    """Run the agent of a CONFIG file for a run that goes on somewhere else, until that ends.

    Of the file, the agent, the runner, the tracer, the grader and the hooks are used. The exit status is 0 when the run
    has ended, 1 when the processes died too often or the store was lost, 2 when the command or the config is wrong, 130
    when it was interrupted, 143 after SIGTERM; what was worked on is given back then.

    \b
    Example:
      AGL_KEY=secret agl runner config.yaml --store http://10.0.0.5:4747 --n-runners 4
    """
    # Imported here, so that listing the commands stays fast.
    import asyncio
    import multiprocessing

    from lightning_core.cli.console import show_warnings
    from lightning_core.config import load_job
    from lightning_core.execution.join import join_run

    for name, number, least in (
        ("--n-runners", n_runners, 1),
        ("--concurrency", concurrency, 1),
        ("--max-restarts", max_restarts, 0),
    ):
        if number < least:
            raise ConfigError(f"{name} is {number}; it is a whole number from {least} on")
    for option, given, kind in (("--key", key, "key"), ("--run", run_id, "run")):
        if given == "":
            raise ConfigError(f"{option} is empty; give a {kind}, or leave {option} out")
    show_warnings(context)
    # What belongs to the algorithm's side is neither needed nor made.
    datasets = ("train_dataset=null", "val_dataset=null", "test_dataset=null")
    others = ("algorithm=baseline", "adapter=triplet", "store=memory", "strategy=local", "n_runners=null")
    job = load_job(config, overrides=[*overrides, *datasets, *others])
    counted = "1 process" if n_runners == 1 else f"{n_runners} processes"

    try:
        asyncio.run(
            join_run(
                job.trainer.runners_side(job.agent),
                url,
                key=key,
                run_id=run_id,
                n_runners=n_runners,
                concurrency=concurrency,
                max_restarts=max_restarts,
                context=multiprocessing.get_context("spawn"),
                on_joined=lambda run_id: click.echo(f"joined run {run_id} at {url} with {counted}"),
            )
        )
    except RunEnded as exc:
        click.echo(str(exc))
        return
    click.echo("the run has ended")
