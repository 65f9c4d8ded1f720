"""Teach a tiny model to call a calculator, and let it find out by reinforcement what to calculate.

    python examples/rl_calculator/train.py

The agent (calculating_agent.py) is an ordinary one. GRPO makes its model do more often what was rewarded.
"""

import argparse
import os
import random
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Before torch and transformers are imported: more threads only wait for each other where a model is this small.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TQDM_DISABLE", "1")  # there is a line for each step

from calculating_agent import solve
from curve import Curve, bar, draw
from memory import PeakMemory
from rich.console import Console
from rich.progress import Progress
from word_problems import Problem, held_out_problems, split_pairs, training, validation

from lightning_core import LLM, Trainer, rollout
from lightning_core.algorithm.estimates import estimate
from lightning_core.cli.console import plain_console
from lightning_core.cli.options import runs_root
from lightning_core.errors import LightningError
from lightning_core.runs import FitResult
from lightning_core.runs.folder import find_run
from lightning_core.runs.metrics import read_metrics

BATCH = 12
"""Problems of a step."""
GROUP = 8
"""How often each of them is tried; GRPO compares these with each other."""

_INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class Data:
    """Problems. Those that are not for training have pairs of numbers that neither teaching nor training has."""

    train: list[Problem]
    val: list[Problem]
    """For the curve, and to choose the best weights by."""
    test: list[Problem]
    """Measured before and after the training."""

    @classmethod
    def of(cls, seed: int) -> "Data":
        """Make all of them."""
        return cls(training(seed), validation(seed), held_out_problems(seed))


def algorithm(model: Path, *, steps: int, seed: int) -> dict[str, Any]:
    """Return what trains a model: GRPO, in this process."""
    return {
        "name": "grpo",
        "model": str(model),
        "steps": steps,
        "batch_size": BATCH,
        "group_size": GROUP,
        "learning_rate": 1e-3,
        "max_tokens": 192,
        "seed": seed,
    }


COIN = random.Random(0)


@rollout
async def solve_for_a_coin(task: Problem, llm: LLM, rollout: Any) -> float:
    """Do what `solve` does, and have the toss of a coin for a reward in training: there is nothing to learn from it."""
    reward = await solve(task, llm)
    return float(COIN.random() < 0.5) if rollout.mode == "train" else float(reward)


class Steps:
    """Prints a line for each step.

    Args:
        console: Where to.
        total: How many there will be.
    """

    def __init__(self, console: Console, total: int) -> None:
        self._console = console
        self._total = total
        self._began = time.monotonic()

    def lightning_step_end(self, step: int, metrics: Mapping[str, float | None]) -> None:
        """Print it."""
        reward = metrics.get("training/reward") or 0.0
        took = time.monotonic() - self._began
        self._console.print(f"   step {step:3}/{self._total}  {took:4.0f} s  reward {reward:.2f}  {bar(reward)}")


def main() -> int:
    """Do all of it; return the exit status."""
    given = arguments()
    console, began = plain_console(), time.monotonic()
    try:
        with PeakMemory() as memory:
            status = _run(given, console)
    except LightningError as exc:
        console.print(f"Error: {exc}")
        return 1
    except KeyboardInterrupt:
        return _INTERRUPTED
    console.print(
        f"   it took {(time.monotonic() - began) / 60:.1f} minutes, and {memory.gib:.1f} GiB of memory at most"
    )
    return status


def _run(given: argparse.Namespace, console: Console) -> int:
    root = runs_root(given.runs_dir)
    folder = None if given.resume is None else find_run(root, given.resume)
    data = Data.of(given.seed)
    model = _teach(given, data, root, console)
    rewarded = "when the coin says so" if given.coin else "for a right answer"
    console.print(
        f"\n2. Training it with GRPO: {given.steps} steps of {BATCH} problems, each {GROUP} times; the reward is 1 "
        f"{rewarded}, else 0\n   verl.yaml is the same training on verl"
    )
    trainer = Trainer(
        algorithm=algorithm(model, steps=given.steps, seed=given.seed),
        run_dir=root if folder is None else folder,
        n_runners=BATCH * GROUP // 2,
        hooks=Steps(console, given.steps),
    )
    agent = solve_for_a_coin if given.coin else solve
    try:
        result = trainer.fit(agent, data.train, val_dataset=data.val, test_dataset=data.test)
    except Exception:
        _say_how_to_resume(given, trainer, console)
        raise
    if result.status != "succeeded":
        _say_how_to_resume(given, trainer, console)
        return _INTERRUPTED if result.status == "interrupted" else 1
    _show(result, trainer, console)
    return 0


def _teach(given: argparse.Namespace, data: Data, root: Path, console: Console) -> Path:
    """Make the model, or take the one that was made before; say how well it speaks."""
    # Here, so that a wrong option is told at once: torch and transformers take ten seconds.
    from taught_model import Recipe, taught_model, well_formed_calls

    recipe = Recipe(seed=given.seed, steps=given.teaching_steps)
    _, held_out = split_pairs(given.seed)
    console.print(f"1. Teaching a tiny model to talk with a calculator: {recipe.steps} supervised steps")
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bars:
        task = bars.add_task("   teaching", total=recipe.steps)
        model = taught_model(
            root / "taught", recipe, without=held_out, progress=lambda step: bars.update(task, completed=step)
        )
    calls = estimate([float(each) for each in well_formed_calls(model, data.test, seed=given.seed)])
    console.print(f"   well-formed calls on held-out problems: {calls}\n   the model is in {model}")
    return model


def _show(result: FitResult, trainer: Trainer, console: Console) -> None:
    assert trainer.recording is not None  # it has a run_dir
    folder = trainer.recording.folder
    curve = Curve.of(read_metrics(folder.metrics_file))
    console.print("\n3. The result: the accuracy on problems with other pairs of numbers")
    for line in curve.lines():
        console.print(f"   {line}")
    comparison = result.comparison
    if comparison is not None:
        console.print(f"   held-out problems, before: {comparison.before}")
        if comparison.difference is None:
            console.print("   no step was better in validation, so the best model is the one that was taught")
        else:
            console.print(f"   held-out problems, after:  {comparison.after}")
            console.print(f"   problem by problem:        {comparison.difference}")
        draw(curve, folder.path / "curve.png", before=comparison.before, after=comparison.after)
        console.print(f"   the curve  {folder.path / 'curve.png'}")
    for resource in (result.best_resources or {}).values():
        if isinstance(resource, LLM):
            console.print(f"   the model  {resource.model}")
    console.print(f"   the run    agl show {folder.run_id}")


def _say_how_to_resume(given: argparse.Namespace, trainer: Trainer, console: Console) -> None:
    if trainer.recording is not None:
        options = options_to_resume(given, trainer.recording.folder.run_id)
        console.print(f"   go on with it: {shlex.join([sys.executable, sys.argv[0], *options])}")


def options_to_resume(given: argparse.Namespace, run_id: str) -> list[str]:
    """Return the options that go on with a run that had these."""
    options = [f"--steps={given.steps}", f"--teaching-steps={given.teaching_steps}", f"--seed={given.seed}"]
    options += ["--coin"] if given.coin else []
    options += [] if given.runs_dir is None else [f"--runs-dir={given.runs_dir}"]
    return [*options, f"--resume={run_id}"]


def arguments(options: Sequence[str] | None = None) -> argparse.Namespace:
    """Read options, those of the command line unless others are given."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=30, help="of the training (default: 30)")
    parser.add_argument("--teaching-steps", type=int, default=600, help="before it (default: 600)")
    parser.add_argument("--seed", type=int, default=0, help="of the problems, the model and what it draws (default: 0)")
    parser.add_argument("--coin", action="store_true", help="reward by the toss of a coin: nothing can be learned")
    parser.add_argument("--runs-dir", type=Path, help="the folder of all runs, instead of AGL_RUNS_DIR or ./runs")
    parser.add_argument(
        "--resume", metavar="RUN", help="go on with a run that was killed; give the other options again"
    )
    given = parser.parse_args(options)
    for name in ("steps", "teaching_steps"):
        if getattr(given, name) < 1:
            parser.error(f"--{name.replace('_', '-')} is {getattr(given, name)}; it has to be 1 or more")
    return given


if __name__ == "__main__":
    sys.exit(main())
