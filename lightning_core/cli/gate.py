"""`agl gate`: whether an agent got worse, for a check of a pull request."""

from pathlib import Path
from typing import Unpack

import click

from lightning_core.cli.evaluate import evaluation_of, evaluation_options
from lightning_core.cli.options import RunOptions, run_options, runs_root

"""The exit status where the samples do not tell."""


@click.command()
@click.argument("config", type=click.Path(path_type=Path))
@click.option(
    "--baseline", required=True, metavar="RUN|FILE", help="The evaluation to compare with: a run of agl eval."
)
@click.option(
    "--max-drop", type=float, default=0.02, show_default=True, help="How much smaller the mean reward may be, at most."
)
@evaluation_options
@click.option(
    "--repeat", type=click.IntRange(min=1), default=1, show_default=True, help="How often to run each sample."
)
@click.option(
    "--range",
    "reward_range",
    type=(float, float),
    default=(0.0, 1.0),
    show_default=True,
    help="The lowest and the highest reward that there can be.",
)
@click.option(
    "--markdown", type=click.Path(path_type=Path, dir_okay=False), help="Write the outcome to this file, too."
)
@run_options(output="Write the outcome to this JSON file.")
@click.pass_context
def gate(
    context: click.Context,
    config: Path,
    baseline: str,
    max_drop: float,
    resources: str | None,
    dataset: str | None,
    repeat: int,
    reward_range: tuple[float, float],
    markdown: Path | None,
    **options: Unpack[RunOptions],
) -> None:
    """Check that an agent is not worse than agl eval measured it.

    The samples of both are run in a random order, until it is clear. The exit status is 0 when the reward drops by less
    than --max-drop, 1 when it drops by more or the run failed, 2 when the command is wrong, 3 when the budget was used
    up, 4 when the samples do not tell. What is shown holds with 95% confidence.

    \b
    Example:
      agl gate config.yaml --baseline run-1a2b
      agl gate config.yaml --baseline baseline.json --max-drop 0.05 --markdown gate.md
    """
    # Imported here, so that listing the commands stays fast.
    from lightning_core.algorithm.evaluation import FILE, Evaluation
    from lightning_core.algorithm.gate import Gate
    from lightning_core.cli.job import check_output, class_path, run_changed
    from lightning_core.errors import ConfigError
    from lightning_core.runs.folder import find_run

    output = options["output"]
    for path in (markdown, output):
        check_output(path)
    low, high = reward_range
    root = runs_root(options["runs_dir"])
    path = Path(baseline) if Path(baseline).is_file() else find_run(root, baseline).path / FILE
    if not path.is_file():
        raise ConfigError(f"--baseline {baseline} is a run without an {FILE}; name a run of agl eval")
    Evaluation.read(path)
    algorithm = {
        "name": class_path(Gate),
        "baseline": str(path.absolute()),
        "max_drop": max_drop,
        "repeat": repeat,
        "low": low,
        "high": high,
        "output": None if output is None else str(output.absolute()),
        "markdown": None if markdown is None else str(markdown.absolute()),
    }
    changes = evaluation_of(config, algorithm, dataset, resources, options)
    options["output"] = None  # the outcome goes there, not the result of the run
    run_changed(context, config, changes, **options)
