"""A run that goes on elsewhere, in the terminal."""

import asyncio
import json
import os
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from lightning_core.display.panel import failure_words, named_rows, sparkline
from lightning_core.errors import ConfigError
from lightning_core.model_proxy import KEY_VARIABLE
from lightning_core.runs import RunFolder
from lightning_core.runs.metrics import newest_of, read_metrics
from lightning_core.runs.standing import CURVES
from lightning_core.runs.stored import copied
from lightning_core.texts import metric_words, seconds, usage_words, visible
from lightning_core.types import Worker
from lightning_viewer.aggregates import Aggregates, Filter
from lightning_viewer.reading import Follower, read_aggregates
from lightning_viewer.routes import PREFIX

INTERVAL_SECONDS = 1.0
"""The least time between two looks. One that takes long is followed by a longer rest, so that it disturbs little."""
SILENCE_SECONDS = 5.0
"""After how long without a change a server is looked at again: workers' heartbeats are shown, too."""
REST = 4
"""How many times as long as a look the rest after it is."""
RATE_SECONDS = 30.0
"""The rate is that of so many of the last seconds."""
WIDTH_ELSEWHERE = 160
"""How wide a line is where there is no terminal."""
MAX_WORKERS = 12
MAX_CAUSES = 3


@dataclass(frozen=True, slots=True)
class Look:
    """How a run stands at one moment."""

    run_id: str
    standing: str
    """`running`, or how it ended; empty where that is not known."""
    elapsed_seconds: float | None
    aggregates: Aggregates
    workers: list[Worker]
    curve: tuple[str, list[float], str] | None
    """A metric's name, its values by step, and the newest one in words."""

    @property
    def is_over(self) -> bool:
        """Whether nothing will change any more."""
        return self.standing not in ("", "running")


async def look_at_folder(folder: RunFolder) -> Look:
    """Look at a run by its folder."""
    manifest = folder.manifest()
    standing = folder.standing(manifest)
    reports = read_metrics(folder.metrics_file)
    words = metric_words(newest_of(reports))
    curve = None
    for name in CURVES:
        values = [value for each in reports if each.step is not None and (value := each.metrics.get(name)) is not None]
        if values:
            curve = name, values, words.get(name, "")
            break
    start = manifest.start.timestamp()
    end = time.time() if manifest.end is None else manifest.end.timestamp()
    async with copied(folder) as store:
        return Look(
            folder.run_id,
            standing,
            end - start,
            await read_aggregates(store),
            list(await store.query_workers()),
            curve,
        )


async def looks_at_folder(folder: RunFolder) -> AsyncGenerator[Look]:
    """Look at a run by its folder, again and again until it has ended."""
    while True:
        began = time.monotonic()
        yield (look := await look_at_folder(folder))
        if look.is_over:
            return
        await asyncio.sleep(_rest(began))


async def looks_at_store(url: str) -> AsyncGenerator[Look]:
    """Look at the run of a server's store, and again whenever the server tells of changes.

    One that cannot tell of them, as it has no `lightning-viewer`, is asked again and again.

    Raises:
        ConfigError: Without `lightning-http`.
        StoreUnavailable: When the server is out of reach for too long.
    """
    try:
        from lightning_http import LightningStoreClient
    except ModuleNotFoundError as exc:
        raise ConfigError("agl top --store needs lightning-http, which is not installed") from exc
    async with LightningStoreClient(url) as store:
        follower, revision, changed = Follower(), 0, None
        while True:
            began = time.monotonic()
            await follower.update(store, changed)
            yield Look(store.run_id, "", None, follower.known, list(await store.query_workers()), None)
            await asyncio.sleep(_rest(began))
            revision, changed = await _news(store.url, store.run_id, revision)


async def _news(url: str, run_id: str, revision: int) -> tuple[int, list[str] | None]:
    """Wait until the server tells of changes after this revision, or that there were none for a while.

    Returns:
        The server's revision, and the rollouts that changed; None where it does not say, or cannot be reached.
    """
    import aiohttp  # lightning-http has it

    key = os.environ.get(KEY_VARIABLE)
    headers = {"x-agl-run": run_id, **({"authorization": f"Bearer {key}"} if key else {})}
    try:
        async with (
            asyncio.timeout(SILENCE_SECONDS),
            aiohttp.ClientSession(headers=headers) as session,
            session.get(f"{url}{PREFIX}/events", params={"after": revision}) as answer,
        ):
            if answer.status != 200:
                return 0, None
            async for line in answer.content:
                if line.startswith(b"data:") and "revision" in (told := json.loads(line.removeprefix(b"data:"))):
                    return told["revision"], told["rollouts"]
    except TimeoutError:
        return revision, []
    except aiohttp.ClientError:
        pass  # the next look waits for the server, or says why it cannot
    return 0, None


def _rest(began: float) -> float:
    return max(INTERVAL_SECONDS, REST * (time.monotonic() - began))


async def watch(console: Console, looks: AsyncGenerator[Look]) -> None:
    """Show how a run stands until it has ended; where there is no terminal, once.

    Args:
        console: Where to.
        looks: How it stands, whenever that has changed. It is closed.
    """
    async with aclosing(looks):
        now = await anext(looks)
        if not console.is_interactive:
            console.width = WIDTH_ELSEWHERE
            console.print(drawn(now))
            return
        with Live(drawn(now), console=console, auto_refresh=False) as live:
            async for later in looks:
                live.update(drawn(later), refresh=True)


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
    if now.elapsed_seconds is not None:
        known.append(("time", seconds(now.elapsed_seconds)))
    known.append(("rollouts", ", ".join(f"{count:,} {status}" for status, count in statuses.most_common()) or "none"))
    if ended and not now.is_over:
        passed = clock() - max(since, min(row.start for row in rows))
        known.append(("rate", f"{ended / max(passed, 1.0):,.3g} rollouts/s"))
    if now.curve is not None:
        name, values, words = now.curve
        known.append((name, f"{sparkline(values)}  {words}" if len(values) > 1 else words))
    usage = now.aggregates.usage()
    if usage.agent.calls:
        known.append(("agent", usage_words(usage.agent)))
    failures = now.aggregates.failures()[:MAX_CAUSES]
    known += [("failed", Text(failure_words(each), style="red")) for each in failures]
    title = Text(now.run_id, style="bold").append(f"  {now.standing}", style="not bold")
    if not now.workers:
        return Group(title, named_rows(known))
    return Group(title, named_rows(known), Text(), _workers(now, clock()))


def _workers(now: Look, time_now: float) -> Table:
    table = Table.grid(padding=(0, 2))
    for heading in ("worker", "status", "rollout", "heartbeat"):
        table.add_column(heading, no_wrap=True, overflow="ellipsis")
    table.add_row(*(Text(each, style="dim") for each in ("worker", "status", "rollout", "heartbeat")))
    busy_first = sorted(now.workers, key=lambda each: (each.status != "busy", each.worker_id))
    for each in busy_first[:MAX_WORKERS]:
        beat = each.last_heartbeat_time
        age = "-" if beat is None else f"{seconds(max(time_now - beat, 0.0))} ago"
        table.add_row(visible(each.worker_id), each.status, each.current_rollout_id or "-", age)
    if len(now.workers) > MAX_WORKERS:
        table.add_row(f"and {len(now.workers) - MAX_WORKERS:,} more")
    return table
