"""Loggers: what a run measures, written where other programs show it."""

import asyncio
import logging
import math
from abc import abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from lightning_core.concurrency import in_daemon_thread
from lightning_core.errors import LightningError
from lightning_core.runs.result import USAGE_METRICS, RolloutCounts
from lightning_core.runs.standing import Onlooker, Snapshot

logger = logging.getLogger(__name__)

WRITE_SECONDS = 10.0
"""How long a logger may take for a step, or to end; one that takes longer is left alone from then on."""


class RunLogger(Onlooker):
    """Writes numbers of a run: at the end of each of the algorithm's steps, and at the end of the run.

    They are what the algorithm reported with the step, by its own names; `reward/mean` of the newest 1000 rewards, with
    the ends of its interval, `reward/low` and `reward/high`; `rollouts/succeeded`, `rollouts/failed`,
    `rollouts/running`, `rollouts/retried`, `rollouts/unrewarded`; and what the agent used: `usage/model_calls`,
    `usage/input_tokens`, `usage/output_tokens`, `usage/cost_usd`, as far as it is known.

    A subclass opens, writes and closes, called in threads, one call after the other. It lives in the algorithm's
    process, whatever the strategy.
    """

    _hangs = False
    _written: Mapping[str, float] = {}

    @abstractmethod
    def open(self, run_id: str) -> None:
        """Begin a run, perhaps one that was begun before. What it raises keeps the run from starting."""

    @abstractmethod
    def write(self, scalars: Mapping[str, float], step: int) -> None:
        """Write finite numbers of a step. The last step comes once more at the end of the run, where more is known."""

    @abstractmethod
    def close(self, status: str) -> None:
        """End the run: `succeeded`, `failed`, `interrupted` or `budget`."""

    async def lightning_run_start(self, run_id: str, kept: RolloutCounts) -> None:
        """Begin."""
        super().lightning_run_start(run_id, kept)
        try:
            await in_daemon_thread(partial(self.open, run_id), name="logger")
        except Exception as exc:
            reason = f"{type(exc).__name__}: {exc}"
            raise LightningError(f"{type(self).__name__} cannot begin run {run_id}: {reason}") from exc

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
            await self._call(partial(self.close, status))

    async def _write(self, metrics: Mapping[str, float | None], step: int) -> None:
        values = {**scalars_of(self.standing.snapshot()), **metrics}
        finite = {name: value for name, value in values.items() if value is not None and math.isfinite(value)}
        written, self._written = self._written, {"step": step, **finite}
        if self._written.items() <= written.items():
            return
        await self._call(partial(self.write, finite, step))

    async def _call(self, function: Callable[[], Any]) -> None:
        if self._hangs:
            return
        self._hangs = True  # until it has come back, also where the wait is cancelled
        call = in_daemon_thread(function, name="logger")
        done, _ = await asyncio.wait((call,), timeout=WRITE_SECONDS)
        if not done:
            call.cancel()
            name = type(self).__name__
            logger.warning("lightning.logger_hangs logger=%s; %g s are over, it is left alone", name, WRITE_SECONDS)
            return
        self._hangs = False
        call.result()


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
