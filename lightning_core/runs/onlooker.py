"""Hooks that know how a run stands: what all that shows a run derives from."""

from collections.abc import Awaitable, Mapping, Sequence

from lightning_core.adapter.usage import Usage
from lightning_core.runs.result import RolloutCounts
from lightning_core.runs.standing import Standing
from lightning_core.types import Attempt, Rollout, Span


class Onlooker:
    """Hooks that know how a run stands.

    Args:
        standing: How it stands; None for a new one.
    """

    stays_with_algorithm = True
    """It is told here of rollouts of runner processes, and is not sent to them."""

    def __init__(self, standing: Standing | None = None) -> None:
        self.standing = Standing() if standing is None else standing

    def lightning_run_start(self, run_id: str, kept: RolloutCounts) -> Awaitable[None] | None:
        """Start the clock."""
        self.standing.begin(run_id, kept)
        return None

    def lightning_rollout_start(self, attempt: Attempt) -> None:
        """Count what runs."""
        self.standing.attempt_began(attempt)

    def lightning_rollout_end(
        self, rollout: Rollout, attempt: Attempt, reward: float | None, spans: Sequence[Span]
    ) -> None:
        """Count what ended."""
        usage = self.standing.attempt_ended(rollout, attempt, reward, spans)
        self._attempt_ended(rollout, attempt, reward, usage)

    def lightning_step_end(self, step: int, metrics: Mapping[str, float | None]) -> Awaitable[None] | None:
        """Take over what the algorithm reports."""
        self.standing.step_ended(step, metrics)
        self._step_ended(step, metrics)
        return None

    def lightning_run_end(self, run_id: str, status: str) -> Awaitable[None] | None:
        """Stop the clock."""
        self.standing.end()
        return None

    def _attempt_ended(self, rollout: Rollout, attempt: Attempt, reward: float | None, usage: Usage) -> None: ...

    def _step_ended(self, step: int, metrics: Mapping[str, float | None]) -> None: ...
