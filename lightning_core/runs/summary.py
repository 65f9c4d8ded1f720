"""The result of a run, for people and for files."""

import difflib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from lightning_core.runs.held_out import Comparison
from lightning_core.runs.result import USAGE_METRICS, BudgetUse, Failure, FitResult, RunUsage
from lightning_core.texts import metric_words, number, shortened, usage_words, visible, visible_prompt
from lightning_core.types import LLM, PromptTemplate, Resource

SAMPLES = {"test": "held-out samples", "val": "validation samples", "train": "training samples", None: "all samples"}
"""What samples of each mode are called."""

_ENDS = ("", "_initial", "_low", "_high")

MAX_FAILURES_SHOWN = 5
"""How many causes the summary lists."""
MAX_TASK_CHARACTERS = 80
"""How much of a failed rollout's input the summary shows."""
MAX_CAUSE_CHARACTERS = 300
"""How much of an error the summary shows."""


def print_summary(console: Console, result: FitResult) -> None:
    """Print the status, rewards before and after, why rollouts failed, the best prompts, and where everything is.

    Args:
        console: See `plain_console`.
        result: What is told; its report is not, which may not be written yet.
    """
    console.print()
    console.print(Text(result.status, style="bold"), _counts(result), sep="")
    if result.comparison is not None:
        console.print("  " + comparison_line(result.comparison))
    for line in metric_lines(result.metrics, result.comparison):
        console.print(f"  {line}")
    for line in usage_lines(result.usage):
        console.print(f"  {line}")
    if result.budget is not None:
        console.print(f"  {result.budget}")
    for line in failure_lines(result.failures):
        console.print(Text(f"  {line}", style="red"))
    for line in hook_lines(result):
        console.print(Text(f"  {line}", style="red"))
    if result.abandoned_agents:
        console.print(
            f"  {result.abandoned_agents:,} agents could not be stopped when their time was over or the run ended; "
            f"{result.dropped_spans:,} spans that they emitted later were dropped"
        )
    for name, resource in (result.best_resources or {}).items():
        if isinstance(resource, PromptTemplate):
            _print_prompt(console, name, (result.initial_resources or {}).get(name), resource)
        elif isinstance(resource, LLM) and Path(resource.model).is_dir():
            console.print(Text(f"  {name}: the model in {resource.model}"), soft_wrap=True)
    console.print()
    console.print(kept_words(result))


def print_report(console: Console, result: FitResult) -> None:
    """Print where the report of a run is, if it has one."""
    if result.report is not None:
        console.print(f"its report: {result.report}", soft_wrap=True)


def comparison_line(comparison: Comparison) -> str:
    """Say in one line how good it was and is, as far as it is known, and on which samples."""
    samples = SAMPLES[comparison.mode] + (" that the search did not use" if comparison.kept_back else "")
    caveat = "; the best was chosen on these, so there is no interval" if comparison.is_chosen_on else ""
    if comparison.difference is not None:
        return f"reward on {samples}: {comparison.difference}{caveat}"
    if comparison.before is not None and comparison.after is not None:
        return f"reward on different {samples}: {comparison.before} → {comparison.after}{caveat}"
    return f"reward on {samples}: {comparison.before or comparison.after}"


def metric_lines(metrics: Mapping[str, float], comparison: Comparison | None) -> list[str]:
    """Return a line for each metric that says something else than the comparison does, which tells it better."""
    mode = None if comparison is None else comparison.mode
    told = {*USAGE_METRICS, *(f"{mode}_{name}{end}" for name in ("reward", "gain") for end in _ENDS)}
    if mode == "test":
        told |= {f"val_gain{end}" for end in _ENDS}  # `val_reward` has it, with both values
    if mode is None:
        told = set(USAGE_METRICS)
    words = metric_words({name: value for name, value in metrics.items() if name not in told})
    notes = {"val_reward": " (of validation samples; the held-out samples tell how good it is)"}
    if mode != "test" or "val_reward_initial" not in metrics:
        notes = {}
    return [f"{visible(name)}: {text}{notes.get(name, '')}" for name, text in words.items()]


def usage_lines(usage: RunUsage) -> list[str]:
    """Say what the agent, and the algorithm itself, asked of models."""
    parts = (("the agent", usage.agent), ("the algorithm itself", usage.algorithm))
    return [f"{who} made {usage_words(used)}" for who, used in parts if used.calls]


def more_budget(budget: BudgetUse | None) -> str:
    """Return the option that lets a run go on that its own budget has ended; empty for other runs."""
    if budget is None or budget.ended_by is None or budget.proxy is not None:
        return ""
    return f" --set budget.{budget.ended_by}=MORE (more than {number(budget.limits[budget.ended_by])})"


def failure_lines(failures: Sequence[Failure]) -> list[str]:
    """Return lines about the most frequent causes of failures, with one example each."""
    lines = []
    for failure in failures[:MAX_FAILURES_SHOWN]:
        where = f" ({failure.where})" if failure.where else ""
        lines.append(f"failed {failure.count:,}x: {shortened(failure.cause, MAX_CAUSE_CHARACTERS)}{where}")
        is_other = failure.message not in ("", failure.cause)
        words = f": {shortened(failure.message, MAX_CAUSE_CHARACTERS)}" if is_other else ""
        task = "" if failure.task is None else f" with {shortened(failure.task, MAX_TASK_CHARACTERS)}"
        lines.append(f"  for one, {failure.example}{task}{words}")
    if len(failures) > MAX_FAILURES_SHOWN:
        lines.append(f"and {len(failures) - MAX_FAILURES_SHOWN} more causes")
    return lines


def hook_lines(result: FitResult) -> list[str]:
    """Return a line for each plugin that did not do its part."""
    return [
        f"plugin {failed.plugin!r} "
        + ("could not be loaded" if failed.hook is None else f"failed {failed.count:,}x in {failed.hook}")
        + f": {shortened(failed.cause, MAX_CAUSE_CHARACTERS)}"
        for failed in result.failed_hooks
    ]


def kept_words(result: FitResult) -> str:
    """Say where the rollouts and spans of a run are, and what else there is of it."""
    run_id, folder = result.run_id, result.folder
    if result.is_in_memory:
        words = f"run {run_id} was kept in memory, and is gone when this process ends"
        return words if folder is None else f"{words}; its result is in {folder}"
    if folder is not None and (folder / "store.db").exists():
        return f"run {run_id} is kept in {folder}"
    words = f"run {run_id} is kept in its store"
    return words if folder is None else f"{words}, and its result in {folder}"


def prompt_diff(before: str, after: str) -> Iterator[tuple[str, str]]:
    """Yield each line of two texts with its mark: `+` only in the second, `-` only in the first, a space in both."""
    first, second = before.splitlines(), after.splitlines()
    for tag, start, end, new_start, new_end in difflib.SequenceMatcher(None, first, second, False).get_opcodes():
        if tag == "equal":
            yield from ((" ", line) for line in first[start:end])
            continue
        yield from (("-", line) for line in first[start:end])
        yield from (("+", line) for line in second[new_start:new_end])


_STYLES = {"+": "green", "-": "red", " ": ""}


def _print_prompt(console: Console, name: str, before: Resource | None, best: PromptTemplate) -> None:
    console.print()
    if before == best:
        console.print(Text(name, style="bold"), " (unchanged)", sep="")
        console.print(visible_prompt(best.template))
    elif isinstance(before, PromptTemplate):
        console.print(Text(name, style="bold"), ", the best found (+), against the first (-):", sep="")
        if before.engine != best.engine:
            console.print(f"engine {before.engine} → {best.engine}")
        for mark, line in prompt_diff(before.template, best.template):
            line = visible_prompt(line)
            console.print(Text(f"{mark} {line}" if line else mark.rstrip(), style=_STYLES[mark]))
    else:
        console.print(Text(name, style="bold"), ", the best found:", sep="")
        console.print(visible_prompt(best.template))


def _counts(result: FitResult) -> str:
    counts = result.rollouts
    more = {
        "without a reward": counts.unrewarded,
        "failed": counts.failed,
        "retried": counts.retried,
        "cancelled": counts.cancelled,
        "unfinished": counts.unfinished,
    }
    told = "".join(f", {count:,} {name}" for name, count in more.items() if count)
    return f" in {result.duration_seconds:.1f} s: {counts.succeeded:,} rollouts succeeded{told}"
