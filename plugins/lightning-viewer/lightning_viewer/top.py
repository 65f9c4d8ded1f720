"""A run that goes on elsewhere, in the terminal."""

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live as Panel
from rich.table import Table
from rich.text import Text

from lightning_core.display.panel import TOLD_FIRST, failure_words, named_rows
from lightning_core.runs.metrics import Report, newest_of, read_metrics
from lightning_core.texts import metric_words, seconds, usage_words, visible
from lightning_core.types import Worker
from lightning_viewer.aggregates import Aggregates, Filter
from lightning_viewer.live import Live

INTERVAL_SECONDS = 1.0
"""The least time between two looks."""
RATE_SECONDS = 30.0
"""The rate is that of so many of the last seconds."""
WIDTH_ELSEWHERE = 160
"""How wide a line is where there is no terminal."""
CURVE_WIDTH = 32
"""How many characters a curve takes at most."""
MAX_WORKERS = 12
MAX_CAUSES = 3

_LEVELS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True, slots=True)
class Look:
    """How a run stands at one moment."""

    run: dict[str, Any]
    """What `Live.summary` says of the run."""
    aggregates: Aggregates
    workers: Sequence[Worker]
    reports: Sequence[Report]
    """What its algorithm has reported, where its folder is here."""
    failure: str | None
    """Why it could not be looked at now, so that this is from before."""

    @property
    def is_over(self) -> bool:
        """Whether nothing will change any more."""
        return self.run["outcome"] not in (None, "running")


async def looks_at(live: Live) -> AsyncGenerator[Look]:
    """Look at a run until it has ended: when something has changed, and every few seconds, for workers' heartbeats."""
    async with aclosing(live.changes(0)) as changes:
        async for change in changes:
            run = (await live.summary())["run"]
            async with live.reading() as store:
                workers = await store.query_workers()
            reports = [] if live.folder is None else read_metrics(live.folder.metrics_file)
            yield (look := Look(run, await live.known(), workers, reports, change["failure"]))
            if look.is_over:
                return
            await asyncio.sleep(INTERVAL_SECONDS)


async def watch(console: Console, live: Live) -> None:
    """Show how a run stands until it has ended; where there is no terminal, once."""
    async with aclosing(looks_at(live)) as looks:
        now = await anext(looks)
        if not console.is_interactive:
            console.width = WIDTH_ELSEWHERE
            console.print(drawn(now))
            return
        with Panel(drawn(now), console=console, auto_refresh=False) as panel:
            async for later in looks:
                panel.update(drawn(later), refresh=True)


def drawn(now: Look, *, clock: Callable[[], float] = time.time) -> Group:
    """Draw how a run stands.

    Args:
        now: How it stands.
        clock: Seconds since the epoch.
    """
    rows = now.aggregates.find(Filter())
    statuses = Counter(row.status for row in rows)
    since = clock() - RATE_SECONDS
    ended = sum(1 for row in rows if row.end is not None and row.end > since)
    known: list[tuple[str, RenderableType]] = []
    if now.run["start"] is not None:
        known.append(("time", seconds((now.run["end"] or clock()) - now.run["start"])))
    known.append(("rollouts", ", ".join(f"{count:,} {status}" for status, count in statuses.most_common()) or "none"))
    if ended and not now.is_over:
        passed = clock() - max(since, min(row.start for row in rows))
        known.append(("rate", f"{ended / max(passed, 1.0):,.3g} rollouts/s"))
    known += _curve(now.reports)
    usage = now.aggregates.usage()
    if usage.agent.calls:
        known.append(("agent", usage_words(usage.agent)))
    failures = now.aggregates.failures()[:MAX_CAUSES]
    known += [("failed", Text(failure_words(each), style="red")) for each in failures]
    if now.failure is not None:
        known.append(("not read", Text(visible(now.failure), style="red")))
    title = Text(now.run["id"], style="bold").append(f"  {now.run['outcome'] or ''}", style="not bold")
    if not now.workers:
        return Group(title, named_rows(known))
    return Group(title, named_rows(known), Text(), _workers(now.workers, clock()))


def _curve(reports: Sequence[Report]) -> list[tuple[str, str]]:
    """Draw the metric that tells best whether the run gets better, with its newest value; nothing without one."""
    words = metric_words(newest_of(reports))
    for name in TOLD_FIRST:
        values = [value for each in reports if each.step is not None and (value := each.metrics.get(name)) is not None]
        if values:
            newest = words.get(name, "")
            return [(name, f"{sparkline(values)}  {newest}" if len(values) > 1 else newest)]
    return []


def sparkline(values: Sequence[float], width: int = CURVE_WIDTH) -> str:
    """Draw a curve in one line, from its lowest value to its highest; of many values, means of neighbours."""
    if len(values) > width:
        ends = [index * len(values) // width for index in range(width + 1)]
        values = [fmean(values[start:end]) for start, end in itertools.pairwise(ends)]
    low, high = min(values), max(values)
    if high == low:
        return _LEVELS[len(_LEVELS) // 2] * len(values)
    return "".join(_LEVELS[min(int((each - low) / (high - low) * len(_LEVELS)), len(_LEVELS) - 1)] for each in values)


def _workers(workers: Sequence[Worker], time_now: float) -> Table:
    table = Table.grid(padding=(0, 2))
    for heading in ("worker", "status", "rollout", "heartbeat"):
        table.add_column(heading, no_wrap=True, overflow="ellipsis")
    table.add_row(*(Text(each, style="dim") for each in ("worker", "status", "rollout", "heartbeat")))
    busy_first = sorted(workers, key=lambda each: (each.status != "busy", each.worker_id))
    for each in busy_first[:MAX_WORKERS]:
        beat = each.last_heartbeat_time
        age = "-" if beat is None else f"{seconds(max(time_now - beat, 0.0))} ago"
        table.add_row(visible(each.worker_id), each.status, each.current_rollout_id or "-", age)
    if len(workers) > MAX_WORKERS:
        table.add_row(f"and {len(workers) - MAX_WORKERS:,} more")
    return table
