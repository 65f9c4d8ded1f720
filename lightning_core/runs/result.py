"""What came of a run."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from lightning_core.runs.comparison import Comparison
from lightning_core.runs.failed_hooks import FailedHook
from lightning_core.runs.failures import Failure, group_failures
from lightning_core.store import LightningStore
from lightning_core.types import AttemptedRollout, NamedResources

RunStatus = Literal["succeeded", "failed", "interrupted", "budget"]
"""`budget`: it stopped because it had used up what it was given."""


@dataclass(frozen=True, slots=True)
class RolloutCounts:
    """How many rollouts of a run ended how."""

    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0
    unfinished: int = 0
    """Queued or running when the run ended."""
    retried: int = 0
    """How many of all of them needed more than one attempt."""


@dataclass(frozen=True, slots=True)
class FitResult:
    """What `Trainer.fit` returns."""

    run_id: str
    status: RunStatus
    best_resources: NamedResources | None = None
    """The best that the algorithm reported; None when it reported none."""
    metrics: dict[str, float] = field(default_factory=dict)
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
    """Plugins that raised when they were told something, in the order of their first failures."""
    comparison: Comparison | None = None
    """The rewards of the initial resources and of the best, with their uncertainty; None when there were none."""


async def count_rollouts(store: LightningStore) -> tuple[RolloutCounts, list[Failure]]:
    """Count how the rollouts of a run ended, and why those that failed did."""
    counts = {"succeeded": 0, "failed": 0, "cancelled": 0, "unfinished": 0, "retried": 0}
    failed = []
    for rollout in await store.query_rollouts():
        counts[rollout.status if rollout.status in counts else "unfinished"] += 1
        counts["retried"] += isinstance(rollout, AttemptedRollout) and rollout.attempt.sequence_id > 1
        if rollout.status == "failed":
            failed.append(rollout)
    return RolloutCounts(**counts), group_failures(failed)
