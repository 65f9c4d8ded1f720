"""Report metrics of an algorithm of one's own: they reach the display, the run's folder, the result and every hook."""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning_core import LightningStore, Trainer, algo, hookimpl, rollout, run_batch


@rollout
async def agent(task: float) -> float:
    """Return a reward."""
    return task


@algo
async def three_steps(*, store: LightningStore, train_dataset: Sequence[float], report: Callable[..., None]) -> None:
    """Run the agent on the tasks three times, and report each time."""
    for step in range(1, 4):
        batch = await run_batch(store, [task * step for task in train_dataset], mode="train")
        report({"train_reward": batch.mean_reward, "lost": batch.lost}, step=step)


class Printer:
    """Hears of every step, as loggers do."""

    @hookimpl
    def lightning_step_end(self, step: int, metrics: Mapping[str, Any]) -> None:
        print(f"step {step}: {dict(metrics)}")


with tempfile.TemporaryDirectory() as runs:
    result = Trainer(algorithm=three_steps, hooks=[Printer()], run_dir=runs).fit(agent, train_dataset=[0.0, 0.2])
    print(f"result: {result.metrics}")
    [kept] = Path(runs).rglob("metrics.*")
    print(f"{kept.name} has {len(kept.read_text(encoding='utf-8').splitlines())} lines")
