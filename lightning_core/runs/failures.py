"""Why rollouts failed, grouped by cause."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from lightning_core.algorithm import describe_failure
from lightning_core.types import Attempt, AttemptedRollout, Rollout


@dataclass(frozen=True, slots=True)
class Failure:
    """Rollouts that failed for the same reason."""

    cause: str
    """The type and the message of the error; `…` where the messages of the group differ."""
    count: int
    example: str
    """The id of one of them."""
    message: str = ""
    """The cause in that one's own words."""
    task: Any = None
    """The input of that one."""
    where: str = ""
    """Where in the user's code that one failed, as `agent.py:12 in score`; empty where that is not known."""


def group_failures(rollouts: Iterable[Rollout]) -> list[Failure]:
    """Group failed rollouts by their cause, the most frequent first.

    Causes are the same when they differ only in what varies from task to task: quoted parts, numbers and ids. A
    three-digit number from 400 to 599 is kept: it may be a status of HTTP.
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
    return _VARYING.sub("…", message)


def failure_at(attempt: Attempt) -> str:
    """Return where in the user's code an attempt failed; empty where that is not known."""
    failure = (attempt.metadata or {}).get("failure")
    return str(failure.get("where", "")) if isinstance(failure, Mapping) else ""


def _where(rollout: Rollout) -> str:
    return failure_at(rollout.attempt) if isinstance(rollout, AttemptedRollout) else ""


_VARYING = re.compile(
    r"""(?<!\w)'[^'\n]*'(?!\w) | (?<!\w)"[^"\n]*"(?!\w)       # quoted
    | \b(?=[a-f]*\d)[0-9a-f]{8,}\b  # ids
    | (?<![\w.])(?![45]\d\d(?![\w.]*\d))-?\d[\d.,:]*(?<![.,:])  # numbers, versions, times
    """,
    re.VERBOSE,
)
