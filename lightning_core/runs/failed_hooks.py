"""Plugins that did not do their part in a run."""

import traceback
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from lightning_core.execution.reporting import FAILED_HOOKS
from lightning_core.logs.secrets import hide_in_text
from lightning_core.plugins import HookFailure
from lightning_core.types import Worker


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


def failed_hooks(
    before: Sequence[HookFailure], after: Sequence[HookFailure], *, workers: Iterable[Worker] = ()
) -> list[FailedHook]:
    """Return what has failed between two moments, and the plugins that could not be loaded at all.

    Args:
        before: What `Hooks.failures` said at the first moment.
        after: What it said at the second one.
        workers: Those of the run; their heartbeats tell what has failed in other processes.
    """
    counts: dict[tuple[str, str | None], int] = {
        (failure.plugin, failure.hook): failure.count for failure in before if failure.hook is not None
    }
    found = {
        (failure.plugin, failure.hook): FailedHook(failure.plugin, failure.hook, _in_one_line(failure.error), count)
        for failure in after
        if (count := failure.count - counts.get((failure.plugin, failure.hook), 0)) > 0
    }
    for each in _elsewhere(workers):
        known = found.get((each.plugin, each.hook))
        if known is None:
            found[each.plugin, each.hook] = each
        elif each.hook is not None:  # a plugin that cannot be loaded is one plugin, in however many processes
            found[each.plugin, each.hook] = replace(known, count=known.count + each.count)
    return list(found.values())


def _elsewhere(workers: Iterable[Worker]) -> Iterator[FailedHook]:
    for worker in workers:
        for told in (worker.heartbeat_stats or {}).get(FAILED_HOOKS, ()):
            yield FailedHook(**told)


def _in_one_line(error: Exception) -> str:
    return hide_in_text(" ".join(traceback.format_exception_only(error)[-1].split()))
