"""`agl eval`, `agl gate`, `agl check` and `agl judge-check`."""

import json
import shlex
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lightning_core.cli.options import RunOptions, run_options, runs_root

if TYPE_CHECKING:
    from lightning_core.types import NamedResources

_KINDS = ("test", "val", "train")
"""The datasets that a config may have, what is evaluated on by default first."""


def _ordered(_context: click.Context, _parameter: click.Parameter, ends: tuple[float, float] | None) -> Any:
    if ends is not None and not ends[0] < ends[1]:
        raise click.BadParameter(f"{ends[0]:g} {ends[1]:g} is no range; the lowest reward comes first")
    return ends


_range = partial(click.option, "--range", "reward_range", type=(float, float), callback=_ordered)
range_option = _range(
    default=(0.0, 1.0), show_default=True, help="The lowest and the highest reward that there can be."
)


def evaluation_options(command: Any) -> Any:
    """Give a command the options of what is run on what, how often."""
    for option in (
        click.option(
            "--repeat", type=click.IntRange(min=1), default=1, show_default=True, help="How often to run each sample."
        ),
        click.option(
            "--resources",
            metavar="RUN|FILE",
            help="Use the best prompts of a run, or the resources of a JSON or YAML file, such as agl train -o wrote.",
        ),
        click.option(
            "--on",
            "dataset",
            type=click.Choice(_KINDS),
            help="The dataset of the config to take samples of; by default the first of these that it has.",
        ),
    ):
        command = option(command)
    return command


@click.command("eval")
@click.argument("config", type=click.Path(path_type=Path))
@click.argument("arguments", nargs=-1)
@evaluation_options
@click.option(
    "--model",
    metavar="DIR",
    help="Let vLLM serve the model of this folder in the place of that of llm_proxy; comes with lightning-tokens.",
)
@click.option("--python", metavar="PATH", help="The interpreter of vLLM's environment; without it, this one.")
@click.option("--as", "replaces", metavar="NAME", help="Whose place the --model takes, where llm_proxy has several.")
@click.option(
    "--samples", "max_samples", type=click.IntRange(min=1), help="How many samples, from the first on; all by default."
)
@click.option(
    "--pass-at",
    type=float,
    default=1.0,
    show_default=True,
    help="The reward from which on a rollout passes, for pass@k.",
)
@run_options(output="Write the result (metrics, failures, usage) to this JSON file.")
@click.pass_context
def evaluate(
    context: click.Context,
    /,
    config: Path,
    resources: str | None,
    dataset: str | None,
    options: RunOptions,
    model: str | None,
    replaces: str | None,
    python: str | None,
    arguments: tuple[str, ...],
    **given: Any,
) -> None:
    """Evaluate the agent of a CONFIG file: reward, pass@k, cost.

    Its algorithm is not run. The run has a folder, as one of agl train has, with each outcome in evaluation.json. The
    exit status is that of agl train. With --model, ARGUMENTS behind -- are vLLM's own.

    \b
    Example:
      agl eval config.yaml
      agl eval config.yaml --resources run-1a2b --repeat 4
      agl eval config.yaml --on val --samples 50 --json
      agl eval config.yaml --model trained -- --max-model-len 8192
    """
    # Imported here, so that listing the commands stays fast.
    from lightning_core.cli.job import run_changed

    algorithm = {"name": "evaluate", **given}
    if model is not None:
        served = {"model": _absolute(model), "arguments": list(arguments), "python": python, "replaces": replaces}
        algorithm |= {"name": "evaluate-model", **served}
    elif replaces is not None or arguments or python is not None:
        named = "--as" if replaces is not None else "--python" if python is not None else shlex.join(arguments)
        raise click.UsageError(f"{named} is about a model that vLLM serves; name it with --model, too")
    run_changed(context, config, evaluation_of(config, algorithm, dataset, resources, options), options)


@click.command()
@click.argument("config", type=click.Path(path_type=Path))
@click.option(
    "--baseline", required=True, metavar="RUN|FILE", help="The evaluation to compare with: a run of agl eval."
)
@click.option(
    "--max-drop",
    type=click.FloatRange(min=0, min_open=True),
    default=0.02,
    show_default=True,
    help="How much smaller the mean reward may be, at most.",
)
@evaluation_options
@range_option
@click.option(
    "--markdown", type=click.Path(path_type=Path, dir_okay=False), help="Write the outcome to this file, too."
)
@run_options(output="Write the result (metrics, usage) to this JSON file.")
@click.pass_context
def gate(
    context: click.Context,
    /,
    config: Path,
    resources: str | None,
    dataset: str | None,
    options: RunOptions,
    baseline: str,
    reward_range: tuple[float, float],
    markdown: Path | None,
    **given: Any,
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
    from lightning_core.cli.job import check_output, run_changed
    from lightning_core.errors import ConfigError
    from lightning_core.runs.folder import find_run
    from lightning_evals.evaluation import FILE, Evaluation

    check_output(markdown)
    root = runs_root(options["runs_dir"])
    path = Path(baseline) if Path(baseline).is_file() else find_run(root, baseline).path / FILE
    if not path.is_file():
        raise ConfigError(f"--baseline {baseline} is a run without an {FILE}; name a run of agl eval")
    Evaluation.read(path)
    low, high = reward_range
    algorithm = {"name": "gate", "baseline": str(path.absolute()), "low": low, "high": high, **given}
    algorithm["markdown"] = None if markdown is None else str(markdown.absolute())
    run_changed(context, config, evaluation_of(config, algorithm, dataset, resources, options), options)


@click.command()
@click.argument("config", type=click.Path(path_type=Path))
@click.option("--on", "dataset", type=click.Choice(_KINDS), help="The dataset to try it on; by default the first.")
@click.option("--samples", type=click.IntRange(min=1), default=20, show_default=True, help="How many samples.")
@click.option("--reference", metavar="FIELD", help="The field of a sample that has the right answer.")
@_range(help="The lowest and the highest reward, where not from 0 to 1.")
@click.option("--set", "overrides", metavar="KEY=VALUE", multiple=True, help="Set a value over that of the file.")
@click.pass_context
def check(
    context: click.Context,
    config: Path,
    dataset: str | None,
    samples: int,
    reference: str | None,
    reward_range: tuple[float, float] | None,
    overrides: tuple[str, ...],
) -> None:
    """Try the grader of a CONFIG file on right and wrong answers.

    It scores the right answer, an empty one, ten of nonsense, and one answer twice. Nothing is run but the grader: the
    environment's, or the one that the config names. Without --reference, a sample's field answer, expected or
    reference is the right one. The exit status is 1 when something is wrong.

    \b
    Example:
      agl check config.yaml
      agl check config.yaml --reference date --samples 50
    """
    # Imported here, so that listing the commands stays fast.
    import asyncio
    import dataclasses

    from lightning_core.agent.grader_check import candidate_of, check_grader
    from lightning_core.config import load_job
    from lightning_core.errors import ConfigError
    from lightning_core.texts import counted, visible

    job = load_job(config, overrides=overrides, dry_run=True)
    candidate = candidate_of(job.environment, job.grader, job.config.initial_resources, reference)
    if candidate is None:
        raise ConfigError(f"{config} has no grader: its agent returns the reward; name a grader under 'reward'")
    named = {kind: getattr(job, f"{kind}_dataset") for kind in ([dataset] if dataset else reversed(_KINDS))}
    rows = next((each for each in named.values() if each is not None), None)
    if rows is None:
        raise ConfigError(f"{config} has no {' and no '.join(f'{kind}_dataset' for kind in named)} to try it on")
    tasks = [rows[index] for index in range(min(samples, len(rows)))]
    if reward_range is not None:
        candidate = dataclasses.replace(candidate, reward_range=reward_range)
    findings = asyncio.run(check_grader(candidate, tasks))
    for finding in findings:
        click.echo(f"{finding.count:>4} of {counted(len(tasks), 'sample')}  {visible(finding.what)}")
    known = sum(candidate.reference(task) is not None for task in tasks)
    unknown = "" if known == len(tasks) else f"; the right answer is known for {known}: name its field with --reference"
    click.echo(f"{len(findings) or 'nothing'} wrong on {counted(len(tasks), 'sample')}{unknown}")
    if findings:
        context.exit(1)


@click.command()
@click.argument("config", type=click.Path(path_type=Path))
@click.argument("labels", type=click.Path(path_type=Path, dir_okay=False))
@run_options(
    output="Write the result to this JSON file; its metrics have the agreement.",
    overrides="Set a value over that of the file, as reward.model=large. The value is YAML. Can be repeated.",
)
@click.pass_context
def judge_check(context: click.Context, config: Path, labels: Path, options: RunOptions) -> None:
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
    from lightning_core.config.components import import_path
    from lightning_core.config.files import override, read_config
    from lightning_core.errors import ConfigError

    reward: Any = override(read_config(config), options["overrides"]).values.get("reward")
    if reward is None:
        raise ConfigError(f"{config} names no grader; add one, as in reward: {{name: judge, rubric: ...}}")
    if isinstance(reward, str) and ":" in reward:
        reward = import_path(reward, config.resolve().parent)
    changes = {
        "agent": "lightning_evals.agreement:given_result",
        "algorithm": "label-agreement",
        "reward": {"name": "lightning_evals.agreement:OnLabelled", "of": reward},
        "train_dataset": str(labels.absolute()),
        "val_dataset": None,
        "test_dataset": None,
    }
    run_changed(context, config, changes, options)


def evaluation_of(
    config: Path, algorithm: Mapping[str, Any], dataset: str | None, resources: str | None, options: RunOptions
) -> dict[str, Any]:
    """Return what is set over a config, so that an algorithm measures on one dataset with given resources.

    The algorithm has to have an option `mode`, which says what kind of samples these are.

    Raises:
        ConfigError: When the config has no such dataset, the resources are not what resources are, or the overrides
            say something of the algorithm, which is another one here.
        RunFolderError: When there is no such run, or it has no prompts.
    """
    from lightning_core.config.files import override, read_config
    from lightning_core.errors import ConfigError
    from lightning_core.registry import did_you_mean
    from lightning_core.types import PromptTemplate

    if any(each.partition("=")[0].partition(".")[0].strip() == "algorithm" for each in options["overrides"]):
        raise ConfigError("--set algorithm has no effect: that of the config is not run; leave it out")
    values = override(read_config(config), options["overrides"]).values
    named = {kind: values.get(f"{kind}_dataset") for kind in ([dataset] if dataset else _KINDS)}
    kind = next((kind for kind, each in named.items() if each is not None), None)
    if kind is None:
        raise ConfigError(
            f"{config} has no {' and no '.join(f'{kind}_dataset' for kind in named)}; name samples to evaluate on, as "
            "in --set test_dataset=test.jsonl"
        )
    given = {} if resources is None else _read(resources, runs_root(options["runs_dir"]))
    prompts = _prompts_in(values.get("initial_resources"))
    for name, each in given.items():
        if prompts and name not in prompts and isinstance(each, PromptTemplate):
            raise ConfigError(
                f"--resources: {config} has no prompt {name!r}, so that it would change nothing; its prompts: "
                f"{', '.join(prompts)}{did_you_mean(name, prompts)}"
            )
    samples = named[kind]
    if isinstance(samples, dict) and "environment" in samples:
        samples = {"split": kind, **samples}  # the tasks of its own key
    datasets = {"train_dataset": None, "val_dataset": samples, "test_dataset": None}
    return {"algorithm": algorithm, "algorithm.mode": kind, **datasets} | {
        f"initial_resources.{name}": each.model_dump(mode="json", exclude_none=True) for name, each in given.items()
    }


def _absolute(model: str) -> str:
    """Return the folder of a model as it is called from elsewhere, or else its name at Hugging Face.

    Raises:
        UsageError: When it can be neither.
    """
    if Path(model).is_dir():
        return str(Path(model).absolute())
    if model.count("/") > 1 or model[0:1] in (".", "/", "~"):
        raise click.UsageError(f"--model {model}: there is no such folder, and it is no name at Hugging Face")
    return model


def _prompts_in(resources: object) -> list[str]:
    """Return the names of the prompts that a config has. Whether its resources are any is checked later."""
    named = resources.items() if isinstance(resources, dict) else ()
    return [name for name, each in named if isinstance(each, dict) and each.get("resource_type") == "prompt_template"]


def _read(given: str, root: Path) -> "NamedResources":
    """Return the resources that are named, without models behind a proxy: that proxy was another run's."""
    from lightning_core.errors import RunFolderError
    from lightning_core.runs.folder import find_run
    from lightning_core.runs.recording import read_best
    from lightning_core.types import PromptTemplate, ProxyLLM

    if not Path(given).is_file():
        folder = find_run(root, given)
        best = read_best(folder.best_file) or {}
        prompts: NamedResources = {name: each for name, each in best.items() if isinstance(each, PromptTemplate)}
        if not prompts:
            raise RunFolderError(f"run {folder.run_id} has no prompts among its best resources; name another run")
        return prompts
    return {name: each for name, each in _resources_in(Path(given)).items() if not isinstance(each, ProxyLLM)}


def _resources_in(file: Path) -> "NamedResources":
    """Return the resources of a JSON or YAML file; of a result, the best ones.

    Raises:
        ConfigError: When they are not what resources are; says where.
    """
    from pydantic import TypeAdapter, ValidationError

    from lightning_core.config.files import read_yaml
    from lightning_core.errors import ConfigError
    from lightning_core.registry.options import wanted
    from lightning_core.types import NamedResources

    try:
        text = file.read_text(encoding="utf-8-sig")
        # YAML reads JSON's escapes of a character beyond 16 bits as two
        data = json.loads(text) if file.suffix == ".json" else read_yaml(text)[0]
    except ValueError as exc:  # YamlFault is one
        raise ConfigError(f"--resources: {file}: {exc}") from exc
    if isinstance(data, dict) and isinstance(data.get("best_resources"), dict):  # a result that a command wrote
        data = data["best_resources"]
    try:
        return TypeAdapter(NamedResources).validate_python(data)
    except ValidationError as exc:
        first = exc.errors(include_input=False, include_url=False)[0]  # the input may hold a key
        place = ".".join(map(str, first["loc"])) or "all of it"
        raise ConfigError(f"--resources: {place}: {wanted(first)}") from exc
