"""Plugins that did not do their part in a run."""

import traceback
from collections.abc import Sequence
from dataclasses import dataclass

from lightning_core.plugins import HookFailure


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
    """Return what has failed between two moments, and the plugins that could not be loaded at all.

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
    return " ".join(traceback.format_exception_only(error)[-1].split())
