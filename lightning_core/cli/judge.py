"""`agl judge-check`: how well the grader of a config agrees with people."""

from pathlib import Path
from typing import Any, Unpack

import click

from lightning_core.cli.options import RunOptions, run_options


@click.command()
@click.argument("config", type=click.Path(path_type=Path))
@click.argument("labels", type=click.Path(path_type=Path, dir_okay=False))
@run_options(
    output="Write the result to this JSON file; its metrics have the agreement.",
    overrides="Set a value over that of the file, as reward.model=large. The value is YAML. Can be repeated.",
)
@click.pass_context
def judge_check(
    context: click.Context,
    config: Path,
    labels: Path,
    **options: Unpack[RunOptions],
) -> None:
    """Compare the grader of a CONFIG file with people's labels.

    LABELS is a dataset file. Each of its samples has a `task`, a `result`, which is what an agent returned, and a
    `label`, which is the reward that a person gives for it. The grader scores each result; it does not see the label.
    Nothing else of the config is run: neither its agent nor its algorithm. The run is kept as any other one.

    \b
    Example:
      agl judge-check config.yaml labels.jsonl
      agl judge-check config.yaml labels.jsonl --set reward.model=large
    """
    # Imported here, so that listing the commands stays fast.
    from lightning_core.cli.job import run_changed

    run_changed(context, config, _comparison(config, labels, options["overrides"]), **options)


def _comparison(config: Path, labels: Path, overrides: tuple[str, ...]) -> dict[str, Any]:
    """Return what is set over a config, so that its grader scores labelled samples, and nothing else is done."""
    from lightning_core.agent.labelled import OnLabelled, given_result
    from lightning_core.algorithm.labels import LabelAgreement
    from lightning_core.cli.job import class_path
    from lightning_core.config.components import import_path
    from lightning_core.config.files import override, read_config
    from lightning_core.errors import ConfigError

    reward: Any = override(read_config(config), overrides).values.get("reward")
    if reward is None:
        raise ConfigError(f"{config} names no grader; add one, as in reward: {{name: judge, rubric: ...}}")
    if isinstance(reward, str) and ":" in reward:
        reward = import_path(reward, config.resolve().parent)
    return {
        "agent": f"{given_result.__module__}:given_result",
        "algorithm": class_path(LabelAgreement),
        "reward": {"name": class_path(OnLabelled), "of": reward},
        "train_dataset": str(labels.absolute()),
        "val_dataset": None,
        "test_dataset": None,
    }
