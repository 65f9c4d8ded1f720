"""`agl gate`: whether an agent got worse, for a check of a pull request."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from lightning_core.cli.evaluate import evaluation_of, evaluation_options
from lightning_core.cli.options import runs_dir_option, runs_root, verbose_option

if TYPE_CHECKING:
    from lightning_core.algorithm.gate import Gate

UNDECIDED = 4
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
@click.option(
    "-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="Write the outcome to this JSON file."
)
@click.option(
    "--json", "as_json", is_flag=True, help="Write events as lines of JSON to stdout, and all else to stderr."
)
@runs_dir_option
@verbose_option
@click.pass_context
def gate(
    context: click.Context,
    config: Path,
    baseline: str,
    max_drop: float,
    resources: str | None,
    dataset: str | None,
    overrides: tuple[str, ...],
    repeat: int,
    reward_range: tuple[float, float],
    markdown: Path | None,
    output: Path | None,
    as_json: bool,
    verbose: bool,
    runs_dir: Path | None,
) -> None:
    """Check that the agent of a CONFIG file is not worse than it was when agl eval measured it.

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

    for path in (markdown, output):
        check_output(path)
    low, high = reward_range
    path = Path(baseline) if Path(baseline).is_file() else find_run(runs_root(runs_dir), baseline).path / FILE
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
    }
    changes = evaluation_of(config, overrides, dataset, resources, runs_dir) | {"algorithm": algorithm}
    job = run_changed(
        context, config, changes, overrides=overrides, verbose=verbose, as_json=as_json, output=None, runs_dir=runs_dir
    )
    assert isinstance(job.trainer.algorithm, Gate)
    end_gate(context, job.trainer.algorithm, as_json=as_json, markdown=markdown, output=output)


def end_gate(
    context: click.Context,
    algorithm: "Gate",
    *,
    as_json: bool,
    markdown: Path | None = None,
    output: Path | None = None,
) -> None:
    """Show what a gate has found, write it down, and end the command with the exit status of that.

    Raises:
        LightningError: When it has found nothing, or that cannot be written.
    """
    from lightning_core.errors import LightningError

    found = algorithm.result
    if found is None:
        raise LightningError("the gate ended without an outcome")
    record = found.model_dump(mode="json")
    if as_json:
        click.echo(json.dumps({"event": "gate", **record}, ensure_ascii=False))
    else:
        click.echo(f"\n{found.markdown()}")
    for file, text in ((markdown, found.markdown()), (output, json.dumps(record, indent=2, ensure_ascii=False) + "\n")):
        if file is not None:
            _write(file, text)
    if found.outcome != "passed":
        context.exit(1 if found.outcome == "worse" else UNDECIDED)


def _write(file: Path, text: str) -> None:
    from lightning_core.errors import LightningError

    try:
        file.write_text(text, encoding="utf-8")
    except OSError as exc:
        raise LightningError(f"cannot write the outcome to {file}: {exc.strerror}") from exc
