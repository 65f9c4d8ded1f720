"""`agl tasks`: the tasks of a run as samples, for training and for evaluation."""

import json
import operator
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lightning_core.cli.options import runs_dir_option, runs_root
from lightning_core.errors import ConfigError

if TYPE_CHECKING:
    from lightning_export.attempts import Ended

_COMPARISONS = {
    "<=": operator.le,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
}
_WHERE = re.compile(r"\s*(.+?)\s*(<=|>=|==|!=|<|>)\s*(-?\d+(?:\.\d*)?)\s*")


@click.command()
@click.argument("run")
@click.option(
    "--where",
    "wheres",
    metavar="REWARD<X",
    multiple=True,
    help="Only rollouts with such a reward, by its name; `reward` is the final one. Can be repeated.",
)
@click.option(
    "--split",
    type=click.Choice(["train", "val", "test"]),
    help="Only samples of this split; by default what the output file is called, else all.",
)
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), required=True, help="The JSONL file.")
@runs_dir_option
def tasks(run: str, wheres: tuple[str, ...], split: str | None, output: Path, runs_dir: Path | None) -> None:
    """Write the tasks of a RUN as samples: each input once.

    A sample has the `input`, and what was recorded: the `answer_given`, the `rewards`, and `expected` where people
    said what is right. Its split depends on its input alone, so that a later import never moves a sample from test to
    train: three in five are for training, one each for validation and test.

    \b
    Example:
      agl tasks run-3f2a --where 'reward<0.5' -o train.jsonl
      agl tasks run-3f2a -o val.jsonl
    """
    # Imported here, so that listing the commands stays fast.
    import asyncio

    from lightning_core.agent.environments import SPLITS, split_of
    from lightning_core.runs.folder import find_run
    from lightning_core.types import sample_key

    if output.suffix != ".jsonl":
        raise ConfigError(f"-o is {output}; samples are written as lines of JSON, so name a .jsonl file")
    conditions = [_condition(each) for each in wheres]
    named = split or next((each for each in SPLITS if output.stem == each), None)
    found: dict[str, dict[str, Any]] = {}
    count, names = 0, set[str]()
    for sample in asyncio.run(_samples(find_run(runs_root(runs_dir), run))):
        count += 1
        names |= sample["rewards"].keys()
        key = sample_key(sample["input"])
        fits = all(
            (value := sample["rewards"].get(name)) is not None and compare(value, limit)
            for name, compare, limit in conditions
        )
        if fits and key not in found and named in (None, split_of(sample["input"])):
            found[key] = sample
    if not found:
        raise ConfigError(
            f"no sample of run {run} is left of its {count:,} rollouts, whose rewards are "
            f"{', '.join(sorted(names)) or 'none'}; loosen --where, or leave --split out"
        )
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        with output.open("x", encoding="utf-8") as file:
            file.writelines(json.dumps(each, ensure_ascii=False) + "\n" for each in found.values())
    except FileExistsError as exc:
        raise ConfigError(f"{output} is there already; name another file with -o") from exc
    except OSError as exc:
        raise ConfigError(f"cannot write {output}: {exc.strerror}") from exc
    click.echo(f"{output}: {len(found):,} samples of {count:,} rollouts" + (f", for {named}" if named else ""))


def _condition(where: str) -> tuple[str, Any, float]:
    read = _WHERE.fullmatch(where)
    if read is None:
        raise ConfigError(f"--where is {where!r}; it is a reward's name, a comparison and a number, as in 'reward<0.5'")
    return read[1], _COMPARISONS[read[2]], float(read[3])


async def _samples(run: Any) -> list[dict[str, Any]]:
    from lightning_export.attempts import Wanted, read_ended

    wanted = Wanted(statuses=("succeeded", "failed"))
    return [_sample(ended) async for ended in read_ended(run, wanted, lambda ended: ended)]


def _sample(ended: "Ended") -> dict[str, Any]:
    from lightning_core.adapter.calls import agent_calls
    from lightning_export.trajectories import rewards_of

    rollout = ended.rollout
    fields = rollout.metadata or {}
    answers = [call.answers[0].get("content") for call in agent_calls(ended.spans) if call.answers]
    rewards = rewards_of(ended)
    if ended.reward is not None:
        rewards = {"reward": ended.reward, **rewards}
    return {
        "input": rollout.input,
        "answer_given": fields.get("answer") if fields.get("answer") is not None else answers[-1] if answers else None,
        "rewards": rewards,
        **({"expected": fields["expected"]} if "expected" in fields else {}),
    }
