"""Rollouts and traces in the terminal."""

from collections.abc import Mapping
from typing import Any, Literal

from rich.console import Console
from rich.text import Text

from lightning_core.algorithm import describe_failure
from lightning_core.algorithm.batch import reward_of
from lightning_core.algorithm.estimates import Estimate, PairedDifference, number_text
from lightning_core.display.panel import failure_words
from lightning_core.errors import NotFound
from lightning_core.runs.result import SAMPLES, pattern_of
from lightning_core.store import LightningStore
from lightning_core.texts import counted, seconds, shortened, visible
from lightning_core.types import AttemptedRollout
from lightning_viewer.aggregates import Aggregates, Filter, Row
from lightning_viewer.compare import change
from lightning_viewer.trace_tree import MAX_CHARACTERS, print_trace
from lightning_viewer.traces import Training


def print_rollouts(console: Console, known: Aggregates, *, limit: int) -> None:
    """Print rollouts, one a line: those without a reward first, then the worst."""
    console.print()
    console.print(Text("rollouts, the worst first", style="bold"))
    for row in known.first("worst", limit):
        line = _rollout_line(known, row)
        if row.failure is not None:
            line.append(f"  {shortened(row.failure, MAX_CHARACTERS)}", style="red")
        console.print(line)
    if len(known) > limit:
        console.print(f"  and {len(known) - limit:,} more: --limit")


def print_failed(console: Console, known: Aggregates, *, limit: int) -> None:
    """Print the rollouts that gave no reward, by their cause."""
    causes: dict[str, list[Row]] = {}
    for row in sorted(known.find(Filter(without_reward=True)), key=lambda row: row.start):
        causes.setdefault(pattern_of(row.failure or ""), []).append(row)
    console.print()
    console.print(Text("rollouts without a reward, by their cause", style="bold"))
    if not causes:
        console.print("  none")
    left = limit
    for pattern, group in sorted(causes.items(), key=lambda item: -len(item[1])):
        console.print(Text(failure_words(known.failure(pattern, group)), style="red"))
        for row in group[: max(left, 1)]:
            console.print(_rollout_line(known, row))
        if len(group) > max(left, 1):
            console.print(f"  and {len(group) - max(left, 1):,} more: --limit")
        left -= len(group)


def _rollout_line(known: Aggregates, row: Row) -> Text:
    reward = _number(row.reward, 6)
    spent = "" if row.seconds is None else seconds(row.seconds)
    line = Text(f"  {row.rollout_id}  {row.mode or '-':<5}  {reward}  {spent:>7}  ")
    return line.append(shortened(known.inputs([row.sample])[row.sample], MAX_CHARACTERS), style="dim")


async def print_rollout(console: Console, store: LightningStore, given: str, *, full: bool = False) -> None:
    """Print the trace of the newest attempt of a rollout, and which tokens are trained on, where it has tokens.

    Args:
        console: Where to.
        store: Where it is.
        given: The rollout's id, or the beginning of it.
        full: Whether to show texts whole, and all messages and attributes.

    Raises:
        NotFound: When no rollout, or more than one, has an id that begins so.
    """
    rollout = await store.get_rollout_by_id(given)
    if rollout is None:
        containing = await store.query_rollouts(rollout_id_contains=given)
        near = [each for each in containing if each.rollout_id.startswith((given, f"ro-{given}"))]
        if len(near) != 1:
            count = "no rollout" if not near else f"{len(near)} rollouts"
            raise NotFound(f"run {store.run_id} has {count} whose id begins with {given!r}; list them with: agl show")
        [rollout] = near
    spans = await store.query_spans(rollout.rollout_id, "latest")
    task = shortened(rollout.input, 10**9 if full else MAX_CHARACTERS)
    print_trace(console, Text(rollout.rollout_id, style="bold").append(f"  {task}", style="not bold"), spans, full=full)
    if rows := Training(spans).rows:
        trained, masked = (sum(row[name] for row in rows) for name in ("trained", "masked"))
        console.print(f"{counted(len(rows), 'training row')}: {trained:,} tokens trained on, {masked:,} masked")
    reward = await reward_of(store, rollout)
    words = rollout.status if reward is None else f"{rollout.status}, reward {reward:g}"
    if isinstance(rollout, AttemptedRollout) and rollout.attempt.sequence_id > 1:
        words += f", at attempt {rollout.attempt.sequence_id}"
    console.print(words if rollout.status != "failed" else f"{words}: {visible(describe_failure(rollout))}")


def print_comparison(console: Console, compared: Mapping[str, Any], *, limit: int) -> None:
    """Print what `compare` returned: the difference, and the samples that changed, the greatest loss first.

    Args:
        console: Where to.
        compared: What `compare` returned.
        limit: How many samples to print.
    """
    samples = SAMPLES[compared["mode"]] + (" that the search did not use" if compared["kept_back"] else "")
    caveat = "; a search chose by these, so there is no interval" if compared["is_chosen_on"] else ""
    for name in ("before", "after"):
        side = compared[name]
        measured = "no reward" if side["estimate"] is None else str(Estimate(**side["estimate"]))
        console.print(f"{name:<7} {side['label']}{' (best)' if side['is_best'] else ''}  {measured}")
    if not compared["samples"]:
        console.print("no sample was tried on both sides, so nothing can be compared")
        return
    if compared["difference"] is None:
        console.print(f"no sample has a reward on both sides, of {counted(len(compared['samples']), 'sample')}")
    else:
        console.print(Text(f"reward on {samples}: {PairedDifference(**compared['difference'])}{caveat}", style="bold"))
    console.print(_change_words(compared))
    console.print()
    _print_changes(console, compared, limit=limit)


def _change_words(compared: Mapping[str, Any]) -> str:
    words = [f"{compared[name]:,} {name}" for name in ("better", "worse", "same")]
    words += [f"{compared['unpaired']:,} without a reward on one side or both"] if compared["unpaired"] else []
    return ", ".join(words)


def _print_changes(console: Console, compared: Mapping[str, Any], *, limit: int) -> None:
    """Print the samples that changed, each with its rollout on the later side, whose trace tells why."""
    pairs = compared["samples"]
    changed = [each for each in pairs if each["before"] != each["after"]]
    width = max((len(each["after_rollouts"][0]) for each in changed[:limit]), default=0)
    if changed[:limit]:
        console.print(Text(f"{'before':>8}  {'after':>6}  {'change':>6}  {'rollout':<{width}}  sample", style="bold"))
    for each in changed[:limit]:
        numbers = [_reward(each["before"], 8), _reward(each["after"], 6), _number(each["difference"], 6, sign="+")]
        style = "green" if change(each["before"], each["after"]) > 0 else "red"
        line = Text("  ".join(numbers), style=style).append(
            f"  {each['after_rollouts'][0]:<{width}}  ", style="not bold"
        )
        console.print(line.append(shortened(each["input"], MAX_CHARACTERS), style="dim not bold"))
    if len(changed) > limit:
        console.print(f"and {len(changed) - limit:,} more: --limit")
    if changed[:limit]:
        console.print(f"why: agl show {compared['after']['run']} {changed[0]['after_rollouts'][0]}")


def _number(value: float | None, width: int, *, sign: Literal["", "+"] = "") -> str:
    return f"{'-' if value is None else number_text(value, sign=sign):>{width}}"


def _reward(value: float | None, width: int) -> str:
    return f"{'none':>{width}}" if value is None else _number(value, width)
