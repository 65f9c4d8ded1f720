"""`agl run`: run one task, and show its trace."""

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from lightning_core.cli.options import verbose_option

if TYPE_CHECKING:
    from lightning_core.types import RolloutMode


@click.command()
@click.argument("agent", required=False)
@click.option(
    "--task",
    required=True,
    metavar="JSON",
    help="The task: JSON, a plain text, or @FILE of either; @- reads stdin.",
)
@click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Take the initial resources, hooks, grader and limits of this config file, and its agent if none is named.",
)
@click.option("--prompt", metavar="TEXT", help="Use this prompt, or that of @FILE, as the one prompt: main_prompt.")
@click.option(
    "--resources",
    metavar="JSON",
    help="Use these resources: JSON or YAML, or @FILE of either, as initial_resources in a config file.",
)
@click.option(
    "--mode",
    type=click.Choice(["train", "val", "test"]),
    default="train",
    show_default=True,
    help="What the rollout is for.",
)
@click.option("--json", "as_json", is_flag=True, help="Write one line of JSON to stdout, and all else to stderr.")
@verbose_option
@click.pass_context
def run(
    context: click.Context,
    agent: str | None,
    task: str,
    config: Path | None,
    prompt: str | None,
    resources: str | None,
    mode: "RolloutMode",
    as_json: bool,
    verbose: bool,
) -> None:
    """Run one task, and show what the agent did as a tree.

    AGENT is module:object or file.py:object. The exit status is 0 when the agent did the task, with or without a
    reward, 1 when it failed, 2 when the command is wrong, 130 when it was interrupted.

    \b
    Example:
      agl run agent.py:solve --task '{"question": "1 + 1?"}' --prompt 'Answer: {question}'
      agl run my_package.agent:solve --task @task.json --json
      agl run --config config.yaml --task 'a plain text'
    """
    # Imported here, so that listing the commands stays fast.
    from lightning_core.cli import INTERRUPTED
    from lightning_core.cli.console import plain_console, show_warnings, stdout_for_json
    from lightning_core.cli.one_task import (
        OneTask,
        load_agent_here,
        outcome_record,
        print_outcome,
        read_resources,
        read_task,
        with_prompt,
    )
    from lightning_core.config import load_job
    from lightning_core.config.components import import_path, search_first
    from lightning_core.config.job import agent_label
    from lightning_core.errors import MissingResource
    from lightning_core.trainer import Trainer

    if agent is None and config is None:
        raise click.UsageError("Missing argument 'AGENT': name one, or a --config that does.", context)
    show_warnings(context, verbose=verbose)
    with ExitStack() as undo:
        lines = undo.enter_context(stdout_for_json()) if as_json else None
        one_task = OneTask(read_task(task), mode=mode)
        if config is not None:
            unused = ["algorithm=baseline", "train_dataset=null", "val_dataset=null", "test_dataset=null"]
            named = [] if agent is None else [f"agent={import_path(agent, Path.cwd())}"]
            search_first(Path.cwd())
            job = load_job(config, overrides=[*unused, *named])
            trainer, loaded = job.trainer, job.agent
            agent = agent or agent_label(job.config.agent)
        else:
            assert agent is not None
            trainer, loaded = Trainer(), load_agent_here(agent)
        trainer.algorithm = one_task
        if resources is not None:
            trainer.initial_resources = read_resources(resources)
        if prompt is not None:
            trainer.initial_resources = with_prompt(trainer.initial_resources, prompt)
        result = trainer.fit(loaded)
        if one_task.outcome is None:
            click.echo(f"{result.status} before the task was done", err=True)
            context.exit(INTERRUPTED if result.status == "interrupted" else 1)
        if lines is not None:
            lines.write(outcome_record(one_task.outcome, result))
        else:
            print_outcome(plain_console(), agent, one_task.outcome, result)
    if (one_task.outcome.failure or "").startswith(MissingResource.__name__):
        click.echo("Give the agent a prompt with --prompt, any resource with --resources, or a --config.", err=True)
    if one_task.outcome.rollout.status != "succeeded":
        context.exit(1)
