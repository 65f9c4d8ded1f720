"""The result of a run, as a value and in words."""

import difflib
import math
import re
import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from io import StringIO
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, ConfigDict

from lightning_core.adapter import read_usage
from lightning_core.adapter.usage import METADATA as USAGE, Usage, as_metadata, total_usage, usage_in
from lightning_core.algorithm import describe_failure
from lightning_core.algorithm.batch import reward_of
from lightning_core.algorithm.own_calls import is_of_algorithm, usage_past_proxy
from lightning_core.budget import in_words_of_end
from lightning_core.plugins import HookFailure
from lightning_core.runs.held_out import Comparison
from lightning_core.secrets import hide_in_text
from lightning_core.store import LightningStore
from lightning_core.texts import (
    dollars,
    metric_words,
    number,
    plain_console,
    shortened,
    usage_words,
    visible,
    visible_prompt,
)
from lightning_core.types import (
    LLM,
    Attempt,
    AttemptedRollout,
    NamedResources,
    PromptTemplate,
    Resource,
    Rollout,
    Span,
)

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True, slots=True)
class Failure:
    """Rollouts that failed for the same reason."""

    cause: str
    """The type and the message of the error; `…` where the messages of the group differ."""
    count: int
    example: str = ""
    """The id of one of them."""
    message: str = ""
    """The cause in that one's own words."""
    task: Any = None
    """The input of that one."""
    where: str = ""
    """Where in the user's code that one failed, as `agent.py:12 in score`; empty where that is not known."""


def group_failures(rollouts: Iterable[Rollout]) -> list[Failure]:
    """Group failed rollouts by their cause, the most frequent first.

    Causes are the same when they differ only in what varies from task to task: quoted parts, numbers, ids, addresses.
    The status of an HTTP answer is kept, as in `Error code: 429` or `503 Service Unavailable`.
    """
    groups: dict[str, list[tuple[str, Rollout]]] = {}
    for rollout in rollouts:
        message = describe_failure(rollout)
        groups.setdefault(pattern_of(message), []).append((message, rollout))
    failures = []
    for pattern, group in groups.items():
        message, rollout = group[0]
        cause = message if len({each for each, _ in group}) == 1 else pattern
        failures.append(Failure(cause, len(group), rollout.rollout_id, message, rollout.input, _where(rollout)))
    return sorted(failures, key=lambda failure: -failure.count)


def pattern_of(message: str) -> str:
    """Return a message with `…` for what varies from task to task."""
    return _VARYING.sub(lambda match: match["status"] or "…", message)


def failure_at(attempt: Attempt) -> str:
    """Return where in the user's code an attempt failed; empty where that is not known."""
    failure = (attempt.metadata or {}).get("failure")
    return str(failure.get("where", "")) if isinstance(failure, Mapping) else ""


def _where(rollout: Rollout) -> str:
    return failure_at(rollout.attempt) if isinstance(rollout, AttemptedRollout) else ""


_PHRASES = "|".join(re.escape(f" {each.phrase}") for each in HTTPStatus if each >= 400)
_VARYING = re.compile(
    rf"""(?<!\w)'[^'\n]*'(?!\w) | (?<!\w)"[^"\n]*"(?!\w)       # quoted
    | (?P<status>
        \b(?i:http\w*(?:/[\d.]+)?|status|code|error|(?:answered|responded)(?:\ with)?)[\s:=(]{{1,3}}[45]\d\d(?![\w.]*\d)
        | (?<![\w.])[45]\d\d(?=,\ message=|\ Client\ Error|\ Server\ Error|{_PHRASES})
      )
    | \b0x[0-9a-fA-F]+\b  # addresses
    | \b(?=[a-f]*\d)[0-9a-f]{{8,}}\b  # ids
    | (?<![\w.])-?\d[\d.,:]*(?<![.,:])  # numbers, versions, times
    """,
    re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class FailedHook:
    """A plugin raised when it was told something. What it was told about went on without it."""

    plugin: str
    """The plugin's name: its entry point, or its class or module."""
    hook: str | None
    """The hook that raised; None when the plugin could not be loaded at all."""
    cause: str
    """What it raised the first time, in one line."""
    count: int
    """How often it raised during the run."""


def failed_hooks(before: Sequence[HookFailure], after: Sequence[HookFailure]) -> list[FailedHook]:
    """Return what has failed in this process between two moments, and the plugins that could not be loaded at all.

    Args:
        before: What `Hooks.failures` said at the first moment.
        after: What it said at the second one.
    """
    counts: dict[tuple[str, str | None], int] = {
        (failure.plugin, failure.hook): failure.count for failure in before if failure.hook is not None
    }
    return [
        FailedHook(failure.plugin, failure.hook, _in_one_line(failure.error), count)
        for failure in after
        if (count := failure.count - counts.get((failure.plugin, failure.hook), 0)) > 0
    ]


def _in_one_line(error: Exception) -> str:
    return hide_in_text(" ".join(traceback.format_exception_only(error)[-1].split()))


USAGE_METRICS = ("model_calls", "input_tokens", "output_tokens", "cost_usd")
"""What a run reports at its end of all of its model calls together; the last in US dollars."""

RunStatus = Literal["succeeded", "failed", "interrupted", "budget"]
"""`budget`: it stopped because it had used up what it was given."""


@dataclass(frozen=True, slots=True)
class RolloutCounts:
    """How many rollouts of a run ended how."""

    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0
    unfinished: int = 0
    """Queued or running."""
    retried: int = 0
    """How many of all of them needed more than one attempt."""
    unrewarded: int = 0
    """How many of those that succeeded gave no reward."""


@dataclass(frozen=True, slots=True)
class RunUsage:
    """What model calls of a run used, as far as their spans tell."""

    agent: Usage = field(default_factory=Usage)
    """Those of the agent and of its grader, in all attempts that were reported."""
    algorithm: Usage = field(default_factory=Usage)
    """Those of the algorithm itself that went through the model proxy."""

    @property
    def metrics(self) -> dict[str, float]:
        """The sums of both, as metrics; none of what is not known, or not there at all."""
        whole = self.agent + self.algorithm
        sums = (whole.calls, whole.input_tokens, whole.output_tokens, whole.cost)
        known = zip(USAGE_METRICS, sums, strict=True) if whole.calls else ()
        return {name: float(value) for name, value in known if value is not None}


@dataclass(frozen=True, slots=True)
class BudgetUse:
    """What a run might use, and what it used, by limit: `usd`, `tokens`, `calls`, `seconds`. Its text is one line."""

    limits: dict[str, float]
    used: dict[str, float]
    ended_by: str | None = None
    """The limit that ended the run; None when none did."""
    unpriced_calls: int = 0
    """Calls that count nothing in `usd`, because their price is not known."""
    proxy: str | None = None
    """The URL of the proxy that counts it by itself, for all who call it; None for the run's own budget."""

    @classmethod
    def of(cls, status: Mapping[str, Any], *, ended_by: str | None = None, proxy: str | None = None) -> "BudgetUse":
        """Return what `Budget.status` says."""
        return cls(status["limits"], status["used"], ended_by, status["unpriced_calls"], proxy)

    def __str__(self) -> str:
        whose = "the run's budget" if self.proxy is None else f"the budget of the proxy at {self.proxy}"
        if self.ended_by is not None:
            words = f"{whose} {in_words_of_end(self.ended_by, self.limits, self.used)}"
        else:
            stands = [f"{number(self.used[each])} of {number(limit)} {each}" for each, limit in self.limits.items()]
            words = f"used of {whose}: {', '.join(stands) or 'no limits'}"
        if "usd" in self.limits and self.unpriced_calls:
            words += f"; {self.unpriced_calls:,} calls had no price, and count nothing in usd"
        return words


_Metric = Annotated[float, BeforeValidator(lambda value: math.nan if value is None else value)]
"""A number; one that is not finite is null in JSON."""


@dataclass(frozen=True, slots=True, repr=False)
class FitResult:
    """What `Trainer.fit` returns. Its representation is one line: how it went, the reward, the use, the folder.

    A run's manifest keeps it, without resources and the inputs of failed rollouts.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(ser_json_inf_nan="null")

    run_id: str
    status: RunStatus
    best_resources: NamedResources | None = None
    """The best that the algorithm reported; None when it reported none."""
    initial_resources: NamedResources | None = None
    """What it started from."""
    metrics: dict[str, _Metric] = field(default_factory=dict)
    """The newest value of each metric that was reported."""
    rollouts: RolloutCounts = RolloutCounts()
    failures: Sequence[Failure] = ()
    """Why rollouts failed, the most frequent cause first."""
    duration_seconds: float = 0.0
    abandoned_agents: int = 0
    """Agents that were still running after their time, and could not be stopped."""
    dropped_spans: int = 0
    """What those emitted afterwards, as far as it was known at the end."""
    failed_hooks: Sequence[FailedHook] = ()
    """Plugins that raised in this process when they were told something, in the order of their first failures."""
    comparison: Comparison | None = None
    """The rewards of the initial resources and of the best, with their uncertainty; None when there were none."""
    usage: RunUsage = field(default_factory=RunUsage)
    """What model calls used."""
    budget: BudgetUse | None = None
    """What the run might use, and which limit ended it; None without a budget."""
    bypassed_proxy: bool = False
    """Whether rollouts succeeded, and no model call of the agent came through the proxy that it was given."""
    algorithm: str = ""
    """The name of the algorithm, or its class."""
    folder: Path | None = None
    """The run's folder; None where nothing was written down."""
    is_in_memory: bool = False
    """Whether its store is gone when this process ends."""

    @property
    def outcome(self) -> str:
        """How it ended: the status, and that the proxy saw no model call."""
        return f"{self.status}, but no model call came through the proxy" if self.bypassed_proxy else self.status

    @property
    def report(self) -> Path | None:
        """The report of the run, `report.html` in its folder; None where none was written."""
        path = None if self.folder is None else self.folder / "report.html"
        return path if path is not None and path.is_file() else None

    def summary(self) -> str:
        """Return what `agl train` prints at the end: rewards before and after, costs, failures, the best prompts."""
        text = StringIO()
        console = plain_console(file=text)
        print_summary(console, self)
        print_report(console, self)
        return text.getvalue().strip("\n")

    def __repr__(self) -> str:
        parts = [f"{self.algorithm or 'run'} {self.outcome}"]
        compared = self.comparison
        if compared is not None:
            reward = compared.difference or compared.after or compared.before
            parts.append(f"{f'{compared.mode} ' if compared.mode else ''}reward {reward}")
        counts = self.rollouts
        parts.append(
            f"{counts.succeeded:,} rollout{'s' * (counts.succeeded != 1)}"
            + (f" and {counts.failed:,} failed" if counts.failed else "")
        )
        used = self.usage.agent + self.usage.algorithm
        if used.cost is not None:
            parts.append(dollars(used.cost))
        if self.folder is not None:
            parts.append(str(self.folder))
        return f"<FitResult {', '.join(parts)}>"


async def count_rollouts(
    store: LightningStore, rollouts: Sequence[Rollout] | None = None
) -> tuple[RolloutCounts, list[Failure]]:
    """Count how the rollouts of a run ended, and why those that failed did.

    Args:
        store: Where they are.
        rollouts: All of them, as the store has them; None to read them.
    """
    counts = {"succeeded": 0, "failed": 0, "cancelled": 0, "unfinished": 0, "retried": 0, "unrewarded": 0}
    failed = []
    for rollout in await store.query_rollouts() if rollouts is None else rollouts:
        if is_of_algorithm(rollout):
            continue
        counts[rollout.status if rollout.status in counts else "unfinished"] += 1
        counts["retried"] += isinstance(rollout, AttemptedRollout) and rollout.attempt.sequence_id > 1
        if rollout.status == "succeeded":
            counts["unrewarded"] += await reward_of(store, rollout) is None
        if rollout.status == "failed":
            failed.append(rollout)
    return RolloutCounts(**counts), group_failures(failed)


async def rewards_in(store: LightningStore, rollouts: Iterable[Rollout]) -> list[tuple[Rollout, float]]:
    """Return those of a run's rollouts that gave a reward, with it; not those that the algorithm made for itself."""
    agents = [each for each in rollouts if not is_of_algorithm(each)]
    return [(each, reward) for each in agents if (reward := await reward_of(store, each)) is not None]


DELETED_USAGE = "lightning_core.deleted_usage"
"""Under this name the store has what deleted rollouts of a run used."""


async def keep_usage(store: LightningStore, rollouts: Iterable[Rollout]) -> None:
    """Remember what rollouts used that are about to be deleted, so that `sum_usage` still counts it, once."""
    used, counted = await _deleted_usage(store)
    deleted = []
    for rollout in rollouts:
        for attempt in await store.query_attempts(rollout.rollout_id):
            deleted.append(attempt.attempt_id)
            if attempt.attempt_id not in counted:
                used += await _usage_of(store, attempt)
    await store.save_state(DELETED_USAGE, {**as_metadata(used), "attempts": deleted})


async def _deleted_usage(store: LightningStore) -> tuple[Usage, set[str]]:
    """Return what deleted attempts used, and the ids of those counted last: a kill may have kept them.

    A rollout that is run again may have the id of the one that was deleted; its attempts have others.
    """
    state = await store.load_state(DELETED_USAGE)
    return usage_in({USAGE: state}), set(state.get("attempts", ())) if isinstance(state, Mapping) else set()


async def sum_usage(store: LightningStore, rollouts: Sequence[Rollout] | None = None) -> RunUsage:
    """Add up what the attempts of a run used, as their metadata or spans have it, and the algorithm by itself.

    Args:
        store: Where they are.
        rollouts: All of the run, as the store has them; None to read them.
    """
    deleted, counted = await _deleted_usage(store)
    agent, algorithm = [deleted], [await usage_past_proxy(store)]
    for rollout in await store.query_rollouts() if rollouts is None else rollouts:
        if not isinstance(rollout, AttemptedRollout):
            continue
        attempts: Sequence[Attempt] = [rollout.attempt]
        if rollout.attempt.sequence_id > 1:
            attempts = await store.query_attempts(rollout.rollout_id)
        left = [attempt for attempt in attempts if attempt.attempt_id not in counted]
        used = algorithm if is_of_algorithm(rollout) else agent
        used += [await _usage_of(store, attempt) for attempt in left]
    return RunUsage(total_usage(agent), total_usage(algorithm))


def was_cut_off(attempt: Attempt) -> bool:
    """Whether no runner reported how an attempt went: it was given back, its runner died, or it goes on."""
    metadata = attempt.metadata or {}
    return attempt.status != "succeeded" and USAGE not in metadata and "failure" not in metadata


async def _usage_of(store: LightningStore, attempt: Attempt) -> Usage:
    is_known = not was_cut_off(attempt)
    return usage_of_attempt(
        attempt, () if is_known else await store.query_spans(attempt.rollout_id, attempt.attempt_id)
    )


def usage_of_attempt(attempt: Attempt, spans: Sequence[Span]) -> Usage:
    """Return what an attempt used, as its runner reported; of one that was cut off, as its spans say."""
    return read_usage(spans) if was_cut_off(attempt) else usage_in(attempt.metadata)


SAMPLES = {"test": "held-out samples", "val": "validation samples", "train": "training samples", None: "all samples"}
"""What samples of each mode are called."""

_ENDS = ("", "_initial", "_low", "_high")

MAX_FAILURES_SHOWN = 5
"""How many causes the summary lists."""
MAX_TASK_CHARACTERS = 80
"""How much of a failed rollout's input the summary shows."""
MAX_CAUSE_CHARACTERS = 300
"""How much of an error the summary shows."""


def print_summary(console: "Console", result: FitResult) -> None:
    """Print the status, rewards before and after, why rollouts failed, the best prompts, and where everything is.

    Args:
        console: See `plain_console`.
        result: What is told; its report is not, which may not be written yet.
    """
    from rich.text import Text  # late: it takes time

    console.print()
    console.print(Text(result.outcome, style="bold"), "," if result.bypassed_proxy else "", _counts(result), sep="")
    for name, line in result_rows(result):
        console.print(Text(f"  {line}", style="red" if name in ("failed", "plugin") else ""))
    if result.abandoned_agents:
        console.print(
            f"  {result.abandoned_agents:,} agents could not be stopped when their time was over or the run ended; "
            f"{result.dropped_spans:,} spans that they emitted later were dropped"
        )
    for name, resource in (result.best_resources or {}).items():
        if isinstance(resource, PromptTemplate):
            print_prompt(console, name, (result.initial_resources or {}).get(name), resource)
        elif isinstance(resource, LLM) and Path(resource.model).is_dir():
            console.print(Text(f"  {name}: the model in {resource.model}"), soft_wrap=True)
    console.print()
    console.print(kept_words(result))


def print_report(console: "Console", result: FitResult) -> None:
    """Print where the report of a run is, if it has one."""
    if result.report is not None:
        console.print(f"its report: {result.report}", soft_wrap=True)


def result_rows(result: FitResult) -> list[tuple[str, str]]:
    """Return what came of a run in lines, each with what it is about."""
    lines = {
        "reward": [] if result.comparison is None else [comparison_line(result.comparison)],
        "metric": metric_lines(result.metrics, result.comparison),
        "usage": usage_lines(result.usage),
        "budget": [] if result.budget is None else [str(result.budget)],
        "failed": failure_lines(result.failures),
        "plugin": hook_lines(result),
    }
    return [(name, line) for name, each in lines.items() for line in each]


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
    covered = {*USAGE_METRICS, *(f"{mode}_{name}{end}" for name in ("reward", "gain") for end in _ENDS)}
    if mode == "test":
        covered |= {f"val_gain{end}" for end in _ENDS}  # `val_reward` has it, with both values
    if mode is None:
        covered = set(USAGE_METRICS)
    words = metric_words({name: value for name, value in metrics.items() if name not in covered})
    if mode == "test" and "val_reward_initial" in metrics:
        words["val_reward"] += " (of validation samples; the held-out samples tell how good it is)"
    return [f"{visible(name)}: {text}" for name, text in words.items()]


def usage_lines(usage: RunUsage) -> list[str]:
    """Say what the agent, and the algorithm itself, asked of models."""
    parts = (("the agent", usage.agent), ("the algorithm itself", usage.algorithm))
    return [f"{who} made {usage_words(used)}" for who, used in parts if used.calls]


def more_budget(budget: BudgetUse | None, config: Mapping[str, Any]) -> str:
    """Return the option that lets a run of a config go on that its own budget has ended; empty for other runs."""
    if budget is None or budget.ended_by is None or budget.proxy is not None:
        return ""
    key = "budget" if config.get("budget") else "llm_proxy.budget"
    return f" --set {key}.{budget.ended_by}=MORE (more than {number(budget.limits[budget.ended_by])})"


def failure_lines(failures: Sequence[Failure]) -> list[str]:
    """Return lines about the most frequent causes of failures, with one example each."""
    lines = []
    for failure in failures[:MAX_FAILURES_SHOWN]:
        where = f" ({failure.where})" if failure.where else ""
        lines.append(f"failed {failure.count:,}x: {shortened(failure.cause, MAX_CAUSE_CHARACTERS)}{where}")
        is_other = failure.message not in ("", failure.cause)
        words = f": {shortened(failure.message, MAX_CAUSE_CHARACTERS)}" if is_other else ""
        if not failure.example:  # as a manifest has it
            continue
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


_STYLES = {"+": "green", "-": "red", " ": ""}


def print_prompt(console: "Console", name: str, before: Resource | None, best: PromptTemplate) -> None:
    """Print the best prompt of a name: whole, or as it differs from the first, where that is known."""
    from rich.text import Text

    console.print()
    if before == best:
        console.print(Text(name, style="bold"), " (unchanged)", sep="")
        console.print(visible_prompt(best.template))
    elif isinstance(before, PromptTemplate):
        console.print(Text(name, style="bold"), ", the best found (+), against the first (-):", sep="")
        if before.engine != best.engine:
            console.print(f"engine {before.engine} → {best.engine}")
        first, second = before.template.splitlines(), best.template.splitlines()
        for line in islice(difflib.unified_diff(first, second, n=len(first), lineterm=""), 3, None):
            text = f"{line[0]} {visible_prompt(line[1:])}".rstrip()
            console.print(Text(text, style=_STYLES[line[0]]))
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
    text = "".join(f", {count:,} {name}" for name, count in more.items() if count)
    return f" in {result.duration_seconds:.1f} s: {counts.succeeded:,} rollouts succeeded{text}"
