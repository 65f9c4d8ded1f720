"""What `agl train` shows while a run goes on."""

import time
from collections.abc import Mapping

from rich.console import Console
from rich.live import Live
from rich.table import Table

from lightning_core.types import Attempt, Rollout

PLAIN_INTERVAL_SECONDS = 5.0
"""The least time between two lines about rollouts where there is no terminal."""


class ProgressDisplay:
    """Hooks that show how a run stands: a live table on a terminal, lines elsewhere.

    Args:
        console: Where to show it, as text that is nothing but text (see `plain_console`).
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None
        self._started = time.monotonic()
        self._last_line = self._started
        self._done = 0
        self._failed = 0
        self._reward_sum = 0.0
        self._rewarded = 0
        self._step = 0
        self._metrics: dict[str, float] = {}

    def lightning_run_start(self, run_id: str) -> None:
        """Begin to show."""
        self._started = self._last_line = time.monotonic()
        if self._console.is_terminal:
            self._live = Live(get_renderable=self._table, console=self._console, refresh_per_second=8, transient=True)
            self._live.start()
        else:
            self._line(f"run {run_id} started")

    def lightning_rollout_end(self, rollout: Rollout, attempt: Attempt, reward: float | None) -> None:
        """Count an attempt."""
        self._done += attempt.status == "succeeded"
        self._failed += attempt.status != "succeeded"
        if reward is not None:
            self._reward_sum += reward
            self._rewarded += 1
        if self._live is None and time.monotonic() - self._last_line >= PLAIN_INTERVAL_SECONDS:
            self._line(self._counts())

    def lightning_step_end(self, step: int, metrics: Mapping[str, float]) -> None:
        """Take over what the algorithm reports."""
        self._step = step
        self._metrics = {**self._metrics, **metrics}  # not changed in place: the display's own thread reads it
        if self._live is None:
            shown = ", ".join(f"{name} {value:.4g}" for name, value in metrics.items())
            self._line(f"step {step}: {shown}; {self._counts()}")

    def lightning_run_end(self, run_id: str, status: str) -> None:
        """Stop showing."""
        if self._live is not None:
            self._live.stop()
            self._live = None
        else:
            self._line(f"run {run_id} {status}; {self._counts()}")

    def _counts(self) -> str:
        mean = f", mean reward {self._reward_sum / self._rewarded:.3f}" if self._rewarded else ""
        return f"{self._done} attempts succeeded, {self._failed} failed{mean}"

    def _line(self, text: str) -> None:
        self._last_line = time.monotonic()
        if self._console.quiet:
            return
        try:
            self._console.print(f"[{self._last_line - self._started:6.1f} s] {text}")
        except (OSError, SystemExit):  # rich ends the process where nobody reads its output any more
            self._console.quiet = True

    def _table(self) -> Table:
        table = Table.grid(padding=(0, 2))
        table.add_row("elapsed", f"{time.monotonic() - self._started:.0f} s")
        table.add_row("attempts", self._counts())
        if self._step:
            table.add_row("step", str(self._step))
        for name, value in self._metrics.items():
            table.add_row(name, f"{value:.4g}")
        return table
