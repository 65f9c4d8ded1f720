"""What came of a run."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from lightning_core.algorithm import describe_failure
from lightning_core.store import LightningStore
from lightning_core.types import NamedResources

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
class Failure:
    """Rollouts that failed for the same reason."""

    cause: str
    count: int
    example: str
    """The id of one of them."""


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


async def count_rollouts(store: LightningStore) -> tuple[RolloutCounts, list[Failure]]:
    """Count how the rollouts of a run ended, and why those that failed did."""
    counts = {"succeeded": 0, "failed": 0, "cancelled": 0, "unfinished": 0, "retried": 0}
    failures: dict[str, list[str]] = {}
    for rollout in await store.query_rollouts():
        counts[rollout.status if rollout.status in counts else "unfinished"] += 1
        attempt = getattr(rollout, "attempt", None)
        counts["retried"] += attempt is not None and attempt.sequence_id > 1
        if rollout.status == "failed":
            failures.setdefault(describe_failure(rollout), []).append(rollout.rollout_id)
    grouped = [Failure(cause, len(ids), ids[0]) for cause, ids in failures.items()]
    return RolloutCounts(**counts), sorted(grouped, key=lambda failure: -failure.count)
