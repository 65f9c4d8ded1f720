"""Rollouts and traces in the terminal."""

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.text import Text

from lightning_core.algorithm import describe_failure
from lightning_core.algorithm.estimates import Estimate, PairedDifference
from lightning_core.cli.tree import MAX_CHARACTERS, print_trace
from lightning_core.display.summary import SAMPLES
from lightning_core.display.texts import shortened
from lightning_core.display.words import counted, seconds
from lightning_core.emitter import find_final_reward
from lightning_core.errors import NotFound
from lightning_core.store import LightningStore
from lightning_core.types import AttemptedRollout
from lightning_viewer.collect import rewarded


async def print_rollouts(console: Console, store: LightningStore, *, only_failed: bool, limit: int) -> None:
    """Print rollouts, one a line: those without a reward first, then the worst."""
    ended = await rewarded(store)
    chosen = [each for each in ended if each.reward is None] if only_failed else list(ended)
    chosen.sort(key=lambda each: (each.reward is not None, each.reward or 0.0))
    console.print()
    console.print(Text(f"rollouts, {'failed ones' if only_failed else 'the worst first'}", style="bold"))
    for each in chosen[:limit]:
        rollout = each.rollout
        reward = "     -" if each.reward is None else f"{each.reward:6.2f}"
        spent = "" if rollout.end_time is None else seconds(rollout.end_time - rollout.start_time)
        line = f"  {rollout.rollout_id}  {rollout.mode or '-':<5}  {reward}  {spent:>7}  "
        text = Text(line).append(shortened(rollout.input, MAX_CHARACTERS), style="dim")
        if each.reward is None and rollout.status in ("failed", "succeeded"):
            text.append(f"  {shortened(describe_failure(rollout), MAX_CHARACTERS)}", style="red")
        console.print(text)
    if len(chosen) > limit:
        console.print(f"  and {len(chosen) - limit:,} more: --limit")


async def print_rollout(console: Console, store: LightningStore, given: str) -> None:
    """Print the trace of the newest attempt of a rollout.

    Args:
        console: Where to.
        store: Where it is.
        given: The rollout's id, or the beginning of it.

    Raises:
        NotFound: When no rollout, or more than one, has an id that begins so.
    """
    found = await store.get_rollout_by_id(given)
    if found is None:
        near = [each for each in await store.query_rollouts() if each.rollout_id.startswith((given, f"ro-{given}"))]
        if len(near) != 1:
            count = "no rollout" if not near else f"{len(near)} rollouts"
            raise NotFound(f"run {store.run_id} has {count} whose id begins with {given!r}; list them with: agl show")
        [found] = near
    spans = await store.query_spans(found.rollout_id, "latest")
    print_trace(
        console, Text(found.rollout_id, style="bold").append(f"  {shortened(found.input, MAX_CHARACTERS)}"), spans
    )
    reward = find_final_reward(spans) if found.status == "succeeded" else None
    words = found.status if reward is None else f"{found.status}, reward {reward:g}"
    if isinstance(found, AttemptedRollout) and found.attempt.sequence_id > 1:
        words += f", at attempt {found.attempt.sequence_id}"
    console.print(words if found.status != "failed" else f"{words}: {describe_failure(found)}")


def print_comparison(console: Console, compared: Mapping[str, Any], *, limit: int) -> None:
    """Print what `compare` returned: the difference, and the samples that changed, the greatest loss first.

    Args:
        console: Where to.
        compared: What `compare` returned.
        limit: How many samples to print.
    """
    samples = SAMPLES[compared["mode"]]
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
        console.print(Text(f"reward on {samples}: {PairedDifference(**compared['difference'])}", style="bold"))
    words = [f"{compared[name]:,} {name}" for name in ("better", "worse", "same")]
    words += [f"{compared['unpaired']:,} without a reward on both sides"] if compared["unpaired"] else []
    console.print(", ".join(words))
    changed = [each for each in compared["samples"] if each["difference"] != 0]
    if changed:
        console.print()
        console.print(Text(f"{'before':>8}  {'after':>6}  {'change':>6}  sample", style="bold"))
    for each in changed[:limit]:
        change = each["difference"]
        numbers = [_number(each["before"], 8), _number(each["after"], 6), _number(change, 6, sign="+")]
        style = "" if change is None else "green" if change > 0 else "red"
        line = Text("  ".join(numbers), style=style).append("  ")
        console.print(line.append(shortened(each["input"], MAX_CHARACTERS), style="dim not bold"))
    if len(changed) > limit:
        console.print(f"and {len(changed) - limit:,} more: --limit")


def _number(value: float | None, width: int, *, sign: str = "") -> str:
    return f"{'-' if value is None else format(value, f'{sign}.2f'):>{width}}"
