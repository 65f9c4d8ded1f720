"""How a run stands, as it is drawn on a terminal and told in a line."""

from collections.abc import Sequence

from rich.console import RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from lightning_core.runs import Failure
from lightning_core.runs.standing import Snapshot
from lightning_core.texts import dollars, metric_words, seconds, shortened, usage_words, visible

BAR_WIDTH = 24
TOLD_FIRST = ("val_reward", "train_reward", "reward")
"""The metrics that tell most, the one that tells most first."""
MAX_METRICS = 5
"""How many others are drawn."""
MAX_CAUSES = 3
"""How many causes of failures are drawn."""
MAX_CAUSE_CHARACTERS = 160


def panel(now: Snapshot, failures: Sequence[Failure] = ()) -> Table:
    """Draw how a run stands: what is known of it, and nothing of what is not.

    Args:
        now: How it stands.
        failures: Why rollouts failed, the most frequent cause first.
    """
    rows: list[tuple[str, RenderableType]] = []
    words = Text(rollout_words(now))
    rows.append(("rollouts", words if not now.expected else _bar(now.done + now.failed, now.expected, words)))
    rows.append(("time", time_words(now)))
    if now.reward is not None:
        rows.append(("reward", str(now.reward)))
    if now.versions > 1 and now.best is not None:
        rows.append(("best so far", f"{now.best} of {now.versions} versions; the first {now.first}"))
    metrics = metric_words(now.metrics)
    rows += [(name, metrics.pop(name)) for name in TOLD_FIRST if name in metrics][:1]
    if now.step:
        rows.append(("step", str(now.step)))
    for name, value in list(metrics.items())[:MAX_METRICS]:
        rows.append((visible(name), value))
    if now.budget is not None:
        for name, limit in now.budget.limits.items():
            used = now.budget.used.get(name, 0)
            rows.append(("budget", _bar(used, limit, Text(_budget_words(name, used, limit)))))
    if now.usage.calls:
        rows.append(("agent", usage_words(now.usage)))
    rows += [("failed", Text(failure_words(each), style="red")) for each in failures[:MAX_CAUSES]]
    if len(failures) > MAX_CAUSES:
        rows.append(("", Text(f"and {len(failures) - MAX_CAUSES} more causes", style="red")))
    return named_rows(rows)


def named_rows(rows: Sequence[tuple[str, RenderableType]]) -> Table:
    """Draw what is known, a line each after its name; what is too long for the terminal is cut off."""
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True, style="dim", min_width=max(len(name) for name, _ in rows))
    table.add_column(no_wrap=True, overflow="ellipsis")
    for row in rows:
        table.add_row(*row)
    return table


def rollout_words(now: Snapshot) -> str:
    """Say how many rollouts there were, as in `12 of 40 done, 1 failed, 4 under way`; zeros are left out."""
    counts = {
        "failed": now.failed,
        "under way": now.running,
        "retried": now.retried,
        "without a reward": now.unrewarded,
    }
    done = f"{now.done:,}" if now.expected is None else f"{now.done:,} of {now.expected:,}"
    return ", ".join([f"{done} done", *(f"{count:,} {name}" for name, count in counts.items() if count)])


def time_words(now: Snapshot) -> str:
    """Say how long a run takes, how fast it is, and how long it still needs; what is known of it."""
    parts = [seconds(now.elapsed_seconds) if now.elapsed_seconds >= 1 else "0 s"]
    if now.rollouts_per_second:
        rate = now.rollouts_per_second
        words = f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"
        parts.append(f"{words} rollouts/s" if rate >= 0.1 else f"{rate * 60:.2g} rollouts/min")
    return ", ".join([*parts, *_left(now)])


def standing_words(now: Snapshot) -> str:
    """Say how a run stands in one line: the best so far, how many rollouts are done, the cost, the time left."""
    parts = []
    if now.versions > 1 and now.best is not None:
        parts.append(f"best {now.best}")
    elif now.reward is not None:
        parts.append(f"reward {now.reward}")
    parts.append(rollout_words(now))
    if now.step:
        parts.append(f"step {now.step:,}")
    if now.usage.cost is not None:
        parts.append(dollars(now.usage.cost))
    return "; ".join([*parts, *_left(now)])


def _left(now: Snapshot) -> list[str]:
    return [] if now.remaining_seconds is None else [f"about {seconds(max(1, round(now.remaining_seconds)))} left"]


def failure_words(failure: Failure) -> str:
    """Say how often rollouts failed for a reason, which, and where in the user's code."""
    where = f" ({failure.where})" if failure.where else ""
    return f"{failure.count:,}x {shortened(failure.cause, MAX_CAUSE_CHARACTERS)}{where}"


def _bar(done: float, total: float, words: Text) -> Table:
    row = Table.grid(padding=(0, 1))
    row.add_column(width=BAR_WIDTH)
    row.add_column(no_wrap=True, overflow="ellipsis")
    row.add_row(ProgressBar(total=max(total, 1e-9), completed=min(done, total), width=BAR_WIDTH), words)
    return row


def _budget_words(name: str, used: float, limit: float) -> str:
    if name == "usd":
        return f"${used:,.2f} of ${limit:,.2f}"
    if name == "seconds":
        return f"{seconds(used) if used >= 1 else '0 s'} of {seconds(limit)}"
    return f"{used:,.0f} of {limit:,.0f} {name}"
