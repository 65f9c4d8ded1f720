"""Displays of a run: a panel on a terminal, lines elsewhere."""

import logging
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Final, TextIO

from rich.console import Console
from rich.live import Live
from rich.table import Table

from lightning_core.adapter.usage import Usage
from lightning_core.algorithm import describe_failure
from lightning_core.display.panel import failure_words, panel, standing_words
from lightning_core.runs import FitResult, RolloutCounts
from lightning_core.runs.result import group_failures, pattern_of, print_report, print_summary
from lightning_core.runs.standing import Onlooker, Snapshot, Standing
from lightning_core.texts import plain_console
from lightning_core.types import Attempt, Rollout

logger = logging.getLogger(__name__)

LIVE_INTERVAL_SECONDS: Final = 0.25
"""The time between two looks of a panel."""
LINE_INTERVAL_SECONDS: Final = 5.0
"""The time between two lines where there is no terminal."""
MAX_CAUSES_TOLD: Final = 5
"""How many causes of failures get a line as they come; the summary has the others."""


class Display(Onlooker):
    """Hooks that show how a run stands. `stop` ends it whatever became of the run; it may be called again.

    Args:
        console: Where people read.
        standing: What is shown; None for a new one.
    """

    unwritten: OSError | None = None
    """Why the output could not be written, such as a disk that is full. The run goes on without it."""

    def __init__(self, console: Console, standing: Standing | None = None) -> None:
        super().__init__(standing)
        self.console = console

    def lightning_run_start(self, run_id: str, kept: RolloutCounts) -> None:
        """Begin to show."""
        super().lightning_run_start(run_id, kept)
        self._started()

    def lightning_run_end(self, run_id: str, status: str) -> None:
        """Stop showing."""
        super().lightning_run_end(run_id, status)
        self.stop()
        self._ended(run_id, status)

    def show_plan(self, plan: object) -> None:
        """Say what the run will do at most, before it starts."""
        self._print(f"planned: {plan}")

    def show_result(self, result: FitResult) -> None:
        """Show what came of the run; see `print_summary`."""
        self._write(partial(print_summary, self.console, result))

    def show_report(self, result: FitResult) -> None:
        """Show where the report of the run is."""
        self._write(partial(print_report, self.console, result))

    def stop(self) -> None:
        """Give the terminal back."""

    def _started(self) -> None: ...

    def _ended(self, run_id: str, status: str) -> None: ...

    def _print(self, text: str) -> None:
        self._write(partial(self.console.print, text))

    def _write(self, write: Callable[[], None]) -> None:
        if self.console.quiet:
            return
        try:
            write()
        except OSError as exc:
            self.unwritten = exc
            self.console.quiet = True
        except SystemExit:  # rich ends the process when the reader of its output is gone
            self.console.quiet = True


class TimedDisplay(Display):
    """Is drawn again from time to time, by a thread: an agent that blocks the event loop does not stop its clock. A
    drawing that fails ends the display, is logged, and lets the run go on.
    """

    interval_seconds = LIVE_INTERVAL_SECONDS
    """The time between two drawings."""
    _drawing: threading.Thread | None = None

    def panel(self) -> Table:
        """Return how the run stands now."""
        return panel(self.standing.snapshot(), self.standing.failures())

    def stop(self) -> None:
        drawing, self._drawing = self._drawing, None
        if drawing is not None:
            self._is_over.set()
            drawing.join()
            self._tried(self._close)

    def _started(self) -> None:
        self._is_over = threading.Event()
        self._has_failed = False
        self._tried(self._open)
        self._drawing = threading.Thread(target=self._draw_on, daemon=True, name="display")
        self._drawing.start()

    def _draw_on(self) -> None:
        while not self._has_failed and not self._is_over.wait(self.interval_seconds):
            self._tried(self._draw)

    def _tried(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception:
            if not self._has_failed:
                logger.exception("lightning.display_failed run_id=%s; the run goes on", self.standing.snapshot().run_id)
            self._has_failed = True

    def _open(self) -> None: ...

    def _draw(self) -> None: ...

    def _close(self) -> None: ...


class LiveDisplay(TimedDisplay):
    """A panel on a terminal; it disappears at the end. What is printed or logged meanwhile goes above it."""

    _live: Live | None = None

    def _open(self) -> None:
        self._live = Live(
            get_renderable=self.panel,
            console=self.console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=_is_terminal(sys.stdout),
            redirect_stderr=_is_terminal(sys.stderr),
        )
        before = sys.stdout, sys.stderr
        self._live.start(refresh=True)
        self._moved = [
            *_move_handlers(before[0], sys.stdout),
            *_move_handlers(before[1], sys.stderr),
        ]

    def _draw(self) -> None:
        if self._live is not None:
            self._live.refresh()

    def _close(self) -> None:
        live, self._live = self._live, None
        if live is None:
            return
        try:
            for handler, stream in self._moved:
                handler.setStream(stream)
        finally:
            live.stop()


class LineDisplay(TimedDisplay):
    """A line every five seconds, when the best changes, and at the first failure of each kind."""

    interval_seconds = LINE_INTERVAL_SECONDS

    def _open(self) -> None:
        self._causes: set[str] = set()
        self._best: str | None = None
        now = self.standing.snapshot()
        self._line(now, f"run {now.run_id} started")

    def _draw(self) -> None:
        now = self.standing.snapshot()
        self._line(now, standing_words(now))

    def _attempt_ended(self, rollout: Rollout, attempt: Attempt, reward: float | None, usage: Usage) -> None:
        if rollout.status == "failed" and len(self._causes) < MAX_CAUSES_TOLD:
            cause = pattern_of(describe_failure(rollout))
            if cause not in self._causes:
                self._causes.add(cause)
                [failure] = group_failures([rollout])
                self._line(self.standing.snapshot(), f"failed: {failure_words(failure).partition(' ')[2]}")

    def _step_ended(self, step: int, metrics: Mapping[str, float | None]) -> None:
        now = self.standing.snapshot()
        if now.best_resources_id not in (None, self._best):
            self._best = now.best_resources_id
            self._line(now, standing_words(now))

    def _line(self, now: Snapshot, text: str) -> None:
        self._print(f"[{now.elapsed_seconds:6.1f} s] {text}")


def display_here() -> Display:
    """Make the display for where this process writes to: a terminal, or anything else."""
    console = plain_console(stderr=True)
    return LiveDisplay(console) if console.is_interactive else LineDisplay(console)


def _is_terminal(stream: TextIO | None) -> bool:
    return stream is not None and stream.isatty()


def _move_handlers(
    before: TextIO | None, after: TextIO | None
) -> Iterator[tuple["logging.StreamHandler[TextIO]", TextIO]]:
    """Let log handlers that write to one stream write to another one, and yield each with the stream it had."""
    if before is None or after is None or before is after:
        return
    names = list(logging.root.manager.loggerDict)
    for each in (logging.root, *map(logging.getLogger, names)):
        for handler in each.handlers:
            if type(handler) is logging.StreamHandler and handler.stream is before:
                handler.setStream(after)
                yield handler, before
