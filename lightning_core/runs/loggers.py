"""Loggers: what a run measures, written where other programs show it."""

import asyncio
import math
from abc import abstractmethod
from collections.abc import Mapping

from lightning_core.runs.result import USAGE_METRICS, RolloutCounts
from lightning_core.runs.standing import Onlooker, Snapshot


class RunLogger(Onlooker):
    """Writes numbers of a run: at the end of each of the algorithm's steps, and at the end of the run.

    They are what the algorithm reported with the step, by its own names; `reward/mean` of the newest 1000 rewards, with
    the ends of its interval, `reward/low` and `reward/high`; `rollouts/succeeded`, `rollouts/failed`,
    `rollouts/running`, `rollouts/retried`, `rollouts/unrewarded`; and what the agent used: `usage/model_calls`,
    `usage/input_tokens`, `usage/output_tokens`, `usage/cost_usd`, as far as it is known.

    A subclass opens, writes and closes, called in threads, one call after the other. It lives in the algorithm's
    process, whatever the strategy.
    """

    @abstractmethod
    def open(self, run_id: str) -> None:
        """Begin a run, perhaps one that was begun before. What it raises keeps the run from starting."""

    @abstractmethod
    def write(self, scalars: Mapping[str, float], step: int) -> None:
        """Write finite numbers of a step. The last step comes once more at the end of the run."""

    @abstractmethod
    def close(self, status: str) -> None:
        """End the run: `succeeded`, `failed`, `interrupted` or `budget`."""

    async def lightning_run_start(self, run_id: str, kept: RolloutCounts) -> None:
        """Begin."""
        super().lightning_run_start(run_id, kept)
        await asyncio.to_thread(self.open, run_id)

    async def lightning_step_end(self, step: int, metrics: Mapping[str, float | None]) -> None:
        """Write what the step has brought."""
        super().lightning_step_end(step, metrics)
        await self._write(metrics, step)

    async def lightning_run_end(self, run_id: str, status: str) -> None:
        """Write how the run stands, and end."""
        super().lightning_run_end(run_id, status)
        try:
            await self._write({}, self.standing.snapshot().step)
        finally:
            await asyncio.to_thread(self.close, status)

    async def _write(self, metrics: Mapping[str, float | None], step: int) -> None:
        values = {**scalars_of(self.standing.snapshot()), **metrics}
        finite = {name: value for name, value in values.items() if value is not None and math.isfinite(value)}
        await asyncio.to_thread(self.write, finite, step)


def scalars_of(snapshot: Snapshot) -> dict[str, float | None]:
    """Return how a run stands, as numbers by name."""
    reward, usage = snapshot.reward, snapshot.usage
    used = zip(USAGE_METRICS, (usage.calls, usage.input_tokens, usage.output_tokens, usage.cost), strict=True)
    rollouts = ("failed", "running", "retried", "unrewarded")
    return {
        "reward/mean": None if reward is None else reward.mean,
        "reward/low": None if reward is None else reward.low,
        "reward/high": None if reward is None else reward.high,
        "rollouts/succeeded": snapshot.done,
        **{f"rollouts/{name}": getattr(snapshot, name) for name in rollouts},
        **{f"usage/{name}": value for name, value in used},
    }
