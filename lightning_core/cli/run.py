"""`agl run`: run one task, and show its trace."""

from pathlib import Path
from typing import Any

import click

from lightning_core.cli.options import verbose_option


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
def run(context: click.Context, /, **given: Any) -> None:
    """Run one task, and show what the agent did as a tree.

    AGENT is module:object or file.py:object. The exit status is 0 when the agent did the task, with or without a
    reward, 1 when it failed, 2 when the command is wrong, 130 when it was interrupted.

    \b
    Example:
      agl run agent.py:solve --task '{"question": "1 + 1?"}' --prompt 'Answer: {question}'
      agl run my_package.agent:solve --task @task.json --json
      agl run --config config.yaml --task 'a plain text'
    """
    from lightning_core.cli.one_task import run_one  # late: listing the commands stays fast

    run_one(context, **given)
