"""Everything in this process and in one event loop."""

import asyncio
import logging
from collections.abc import Iterable

from lightning_core.execution.base import AlgorithmBundle, ExecutionError, ExecutionStrategy, RunnerBundle
from lightning_core.store import LightningStore

logger = logging.getLogger(__name__)


class LocalStrategy(ExecutionStrategy):
    """Runs the algorithm and the runners as tasks of the calling event loop.

    Args:
        n_runners: How many rollouts run at the same time.
    """

    def __init__(self, n_runners: int = 1) -> None:
        if n_runners < 1:
            raise ValueError(f"n_runners is {n_runners}; it is at least 1")
        self.n_runners = n_runners

    async def execute(self, algorithm: AlgorithmBundle, runner: RunnerBundle, store: LightningStore) -> None:
        leader = asyncio.create_task(algorithm(store), name="algorithm")
        runners = [
            asyncio.create_task(runner(store, worker_id), name=f"runner {worker_id}")
            for worker_id in range(self.n_runners)
        ]
        try:
            await self._watch(leader, set(runners))
        finally:
            await _end([leader, *runners])

    async def _watch(self, leader: "asyncio.Task[None]", runners: "set[asyncio.Task[None]]") -> None:
        while not leader.done():
            if not runners:
                raise ExecutionError(
                    f"all {self.n_runners} runners have reached their max_rollouts, and the algorithm still waits; "
                    "raise max_rollouts or n_runners"
                )
            ended, _ = await asyncio.wait({leader, *runners}, return_when=asyncio.FIRST_COMPLETED)
            for runner in ended & runners:
                runner.result()
            runners -= ended
        leader.result()


async def _end(tasks: "Iterable[asyncio.Task[None]]") -> None:
    tasks = [task for task in tasks if not task.done()]
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)
    for task in tasks:
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.warning("lightning.task_ended_badly task=%s", task.get_name(), exc_info=error)
