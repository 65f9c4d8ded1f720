"""The first rollouts of a run: whether all of them fail in the same way, and whether model calls are recorded."""

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence

from lightning_core.errors import AgentTimeout, NoRewards
from lightning_core.runner import clients
from lightning_core.runner.outcome import PAUSE
from lightning_core.runs.result import RolloutCounts, failure_at, pattern_of, usage_of_attempt
from lightning_core.types import Attempt, Rollout, Span

logger = logging.getLogger(__name__)

_MIN_FIRST = 8
"""How many of the first rollouts have to fail alike, at the least, before a run ends early."""


class FirstRollouts:
    """Hooks that watch how a run begins.

    When the first rollouts (two for each runner, at least 8) have all failed for the same reason and none has
    succeeded, `guard` ends its work. A model that may answer later is waited for, for `PATIENCE_SECONDS`; then one for
    each runner, at least 2, is enough. When none of those that succeeded has a model call, and the process uses a
    client whose calls nothing records, that is logged once.

    Args:
        runners: How many rollouts run at the same time.
        stops: Whether identical failures end the work.
        unrecorded: Returns the model clients in use whose calls nothing records: module -> what to install.
    """

    stays_with_algorithm = True
    """It hears of rollouts of runner processes here, and is not sent to them."""

    def __init__(
        self, runners: int, *, stops: bool = True, unrecorded: Callable[[], Mapping[str, str]] | None = None
    ) -> None:
        self._runners = runners
        self._count = max(_MIN_FIRST, 2 * runners)
        self._stops = stops
        self._unrecorded = unrecorded
        self._failed: set[str] = set()
        self._pattern: str | None = None
        self._cause = ""
        self._silent = 0
        self._waits_since = math.inf
        self._end: Callable[[], object] | None = None
        self.has_heard_enough = not stops and unrecorded is None
        """Whether nothing that it could still be told matters."""

    def lightning_run_start(self, kept: RolloutCounts) -> None:
        """Look at what a run that goes on has from before."""
        self._stops = self._stops and not kept.succeeded

    def lightning_rollout_end(self, rollout: Rollout, attempt: Attempt, spans: Sequence[Span]) -> None:
        """Count how the attempt ended."""
        if self._unrecorded is not None and usage_of_attempt(attempt, spans).calls:
            self._unrecorded = None
        if attempt.status == "succeeded":
            self._stops = False
            self._silent += 1
            if self._silent >= self._count:
                self._tell_of_unrecorded()
        elif (
            self._stops
            and attempt.status in ("failed", "timeout")
            and (cause := _cause_of(rollout, attempt)) is not None
        ):
            self._count_failure(rollout.rollout_id, cause, attempt)
        self.has_heard_enough = not self._stops and self._unrecorded is None

    def lightning_run_end(self) -> None:
        """Look at a run that was shorter than what it takes."""
        if self._silent:
            self._tell_of_unrecorded()

    async def guard(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do a piece of work, which is cancelled when the first rollouts have all failed for the same reason.

        Raises:
            NoRewards: When it was; says the reason.
        """
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(None) as scope:

                def end() -> None:
                    if self._end is not None:  # the work still goes on
                        scope.reschedule(loop.time())

                self._end = lambda: loop.call_soon_threadsafe(end)
                try:
                    await work()
                finally:
                    self._end = None
        except TimeoutError:
            if not scope.expired():
                raise
            raise NoRewards(
                f"the first {len(self._failed)} rollouts have all failed for the same reason, so the run ends here: "
                f"{self._cause}. Where that is to be expected at first, set stop_on_identical_failures to false"
            ) from None

    def _count_failure(self, rollout_id: str, cause: str, attempt: Attempt) -> None:
        where, pattern, is_over, enough = failure_at(attempt), pattern_of(cause), True, self._count
        if (pause := (attempt.metadata or {}).get(PAUSE)) is not None:
            pattern = cause.partition(":")[0]  # what is left of a limit differs from answer to answer
        if pause:
            self._waits_since = min(self._waits_since, attempt.start_time)
            is_over = (attempt.end_time or 0.0) - self._waits_since >= clients.PATIENCE_SECONDS
            enough = max(2, self._runners)
        if self._pattern not in (None, pattern):
            self._stops = False
            return
        self._pattern, self._cause = pattern, f"{cause} ({where})" if where else cause
        self._failed.add(rollout_id)
        if is_over and len(self._failed) >= enough and self._end is not None:
            self._stops = False
            self._end()

    def _tell_of_unrecorded(self) -> None:
        clients = {} if self._unrecorded is None else self._unrecorded()
        self._unrecorded = None
        if clients:
            logger.warning(
                "lightning.no_model_calls rollouts=%d: no model call was recorded, so neither the trace nor the "
                "algorithm has what the agent asked and was answered. %s",
                self._silent,
                how_to_record(clients),
            )


def how_to_record(clients: Mapping[str, str]) -> str:
    """Say what to install for some model clients: module -> distribution."""
    return "To record " + "; ".join(f"{module}: pip install {name}" for module, name in clients.items())


def _cause_of(rollout: Rollout, attempt: Attempt) -> str | None:
    """Return what an attempt failed with; None where another attempt may do better."""
    metadata = attempt.metadata or {}
    failure = metadata.get("failure")
    if attempt.status == "timeout":
        reason = failure["message"] if failure else AgentTimeout(rollout.config.timeout_seconds or 0.0)
        return f"{reason}; raise timeout_seconds in rollout_config, or see with agl run what the agent waits for"
    if isinstance(failure, Mapping):
        return f"{failure.get('type')}: {' '.join(str(failure.get('message')).split())}"
    fault = str(metadata.get("fault", ""))
    # A model's client has tried several times by itself. Any other fault is run again before it counts.
    return fault if fault and (rollout.status == "failed" or PAUSE in metadata) else None
