"""Why rollouts failed, grouped by cause."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from lightning_core.algorithm import describe_failure
from lightning_core.types import Rollout


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


def group_failures(rollouts: Iterable[Rollout]) -> list[Failure]:
    """Group failed rollouts by their cause, the most frequent first.

    Causes are the same when they differ only in what varies from task to task: quoted parts, numbers and ids. A
    three-digit number from 400 to 599 is kept: it may be a status of HTTP.
    """
    groups: dict[str, list[tuple[str, Rollout]]] = {}
    for rollout in rollouts:
        message = describe_failure(rollout)
        groups.setdefault(_VARYING.sub("…", message), []).append((message, rollout))
    failures = []
    for pattern, group in groups.items():
        message, rollout = group[0]
        cause = message if len({each for each, _ in group}) == 1 else pattern
        failures.append(Failure(cause, len(group), rollout.rollout_id, message, rollout.input))
    return sorted(failures, key=lambda failure: -failure.count)


_VARYING = re.compile(
    r"""(?<!\w)'[^'\n]*'(?!\w) | (?<!\w)"[^"\n]*"(?!\w)       # quoted
    | \b(?=[a-f]*\d)[0-9a-f]{8,}\b  # ids
    | (?<![\w.])(?![45]\d\d(?![\w.]*\d))-?\d[\d.,:]*(?<![.,:])  # numbers, versions, times
    """,
    re.VERBOSE,
)
