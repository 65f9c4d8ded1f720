"""Everything in this process and in one event loop."""

import asyncio
import logging
from collections.abc import Iterable
from typing import Any

from lightning_core.execution.base import AlgorithmBundle, ExecutionStrategy, RunnerBundle
from lightning_core.execution.ending import tell_end
from lightning_core.execution.leading import lead_without_runners, raise_failure
from lightning_core.store import LightningStore
from lightning_core.superseded import superseded

logger = logging.getLogger(__name__)

END_GRACE_SECONDS = 1.2
"""How long a cancelled algorithm or runner may take to end. An interrupted run should end within 2 s."""


class LocalStrategy(ExecutionStrategy):
    """Runs the algorithm and the runners as tasks of the calling event loop.

    One that does not let itself be cancelled is abandoned after 1.2 s, and logged.

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
        await store.begin_run()
        # In this order: what runners do first (instrumenting a client library may import it) blocks the event loop.
        runners = [
            asyncio.create_task(runner(store, worker_id), name=f"runner {worker_id}")
            for worker_id in range(self.n_runners)
        ]
        leader = asyncio.create_task(algorithm(store), name="algorithm")
        try:
            await self._watch(leader, set(runners))
            if not leader.done():
                await lead_without_runners(leader, store, self.n_runners)
            raise_failure(leader)
        except BaseException as exc:
            await end_tasks([leader, *runners], raised=exc)
            await tell_end(store, raised=exc)
            raise
        await end_tasks(runners)
        await tell_end(store)

    async def _watch(self, leader: "asyncio.Task[None]", runners: "set[asyncio.Task[None]]") -> None:
        """Return when the algorithm has ended, or all runners have."""
        while runners and not leader.done():
            ended, _ = await asyncio.wait({leader, *runners}, return_when=asyncio.FIRST_COMPLETED)
            for runner in ended & runners:
                raise_failure(runner)
            runners -= ended


async def end_tasks(tasks: "Iterable[asyncio.Task[Any]]", *, raised: BaseException | None = None) -> None:
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
