"""Everything in this process and in one event loop."""

import asyncio
import logging
from collections.abc import Iterable
from typing import Any

from lightning_core.errors import ExecutionError
from lightning_core.execution.base import AlgorithmBundle, ExecutionStrategy, RunnerBundle
from lightning_core.lifecycle import QUEUED
from lightning_core.runner.reports import give_back
from lightning_core.store import LightningStore
from lightning_core.superseded import superseded
from lightning_core.types import Rollout

logger = logging.getLogger(__name__)

END_GRACE_SECONDS = 1.5
"""How long a cancelled algorithm or runner may take to end. An interrupted run should end within 2 s."""


class LocalStrategy(ExecutionStrategy):
    """Runs the algorithm and the runners as tasks of the calling event loop.

    One that does not let itself be cancelled is abandoned after 1.5 s, and logged.

    Args:
        n_runners: How many rollouts run at the same time.
    """

    @superseded(
        without_effect=dict.fromkeys(
            ("main_thread", "join_timeout", "graceful_delay", "poll_interval", "managed_store"),
            "everything is a task of one event loop",
        )
    )
    def __init__(self, n_runners: int = 1) -> None:
        if type(n_runners) is not int or n_runners < 1:
            raise ValueError(f"n_runners is {n_runners!r}; it is a whole number from 1 on")
        self.n_runners = n_runners

    async def execute(self, algorithm: AlgorithmBundle, runner: RunnerBundle, store: LightningStore) -> None:
        leader = asyncio.create_task(algorithm(store), name="algorithm")
        runners = [
            asyncio.create_task(runner(store, worker_id), name=f"runner {worker_id}")
            for worker_id in range(self.n_runners)
        ]
        try:
            await self._watch(leader, set(runners))
            if not leader.done():
                await self._watch_without_runners(leader, store)
            _raise_failure(leader)
        except BaseException as exc:
            await _end([leader, *runners], raised=exc)
            raise
        await _end(runners)

    async def _watch(self, leader: "asyncio.Task[None]", runners: "set[asyncio.Task[None]]") -> None:
        """Return when the algorithm has ended, or all runners have."""
        while runners and not leader.done():
            ended, _ = await asyncio.wait({leader, *runners}, return_when=asyncio.FIRST_COMPLETED)
            for runner in ended & runners:
                _raise_failure(runner)
            runners -= ended

    async def _watch_without_runners(self, leader: "asyncio.Task[None]", store: LightningStore) -> None:
        """Let the algorithm come to its end, unless it queues work that nobody is left to do."""
        waiting = await store.query_rollouts(status_in=tuple(QUEUED), limit=1)
        if waiting and not leader.done():
            raise self._nobody_left(waiting[0])
        # A store tells of new work only to those who claim it. What is claimed here goes back into the queue at once.
        claim = asyncio.create_task(store.dequeue_rollout(wait_seconds=None), name="unclaimed work")
        try:
            await asyncio.wait({leader, claim}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            claim.cancel()
            await asyncio.wait((claim,))
            if not claim.cancelled() and claim.exception() is None and (claimed := claim.result()) is not None:
                await give_back(store, claimed, may_requeue=True, reason="no runner is left")
        if not leader.done():
            rollout = claim.result()
            assert rollout is not None
            raise self._nobody_left(rollout)

    def _nobody_left(self, rollout: Rollout) -> ExecutionError:
        return ExecutionError(
            f"all {self.n_runners} runners have reached their max_rollouts, and rollout {rollout.rollout_id} "
            "still waits; raise max_rollouts or n_runners"
        )


def _raise_failure(task: "asyncio.Task[Any]") -> None:
    if task.cancelled():
        # As a CancelledError it would look as if the caller had been cancelled.
        raise ExecutionError(f"{task.get_name()} was cancelled from inside: it awaited something that was cancelled")
    task.result()


async def _end(tasks: "Iterable[asyncio.Task[Any]]", *, raised: BaseException | None = None) -> None:
    """Cancel what still runs, and log what none of the callers sees: errors other than the one that is raised."""
    running = {task for task in tasks if not task.done()}
    for task in running:
        task.cancel()
    if running:
        _, running = await asyncio.wait(running, timeout=END_GRACE_SECONDS)
    for task in tasks:
        if task in running:
            logger.error("lightning.task_abandoned task=%s; it does not let itself be cancelled", task.get_name())
        elif not task.cancelled() and (error := task.exception()) is not None and error is not raised:
            logger.warning("lightning.task_ended_badly task=%s", task.get_name(), exc_info=error)
