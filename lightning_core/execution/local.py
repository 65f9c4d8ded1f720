"""Everything in this process and in one event loop."""

import asyncio
import logging
from collections.abc import Iterable
from typing import Any

from lightning_core.deprecated import deprecated
from lightning_core.errors import ExecutionError, StoreClosed, StoreError
from lightning_core.execution.base import AlgorithmBundle, ExecutionStrategy, RunnerBundle
from lightning_core.lifecycle import QUEUED
from lightning_core.store import LightningStore
from lightning_core.types import Rollout

logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.2
"""How often to look for work that no runner is left to do: one query each time, once all runners have ended."""


def raise_failure(task: "asyncio.Task[Any]") -> None:
    """Raise what a task, which has ended, failed with.

    Raises:
        Exception: That.
        ExecutionError: When the task cancelled itself.
    """
    if task.cancelled():
        # As a CancelledError it would look as if the caller had been cancelled.
        raise ExecutionError(f"{task.get_name()} was cancelled from inside: it awaited something that was cancelled")
    task.result()


async def wait_for_algorithm(leader: "asyncio.Task[None]", store: LightningStore, n_runners: int) -> None:
    """Let the algorithm come to its end, unless it queues work that no runner is left to do.

    Such work stays in the queue, for runners that come later.

    Raises:
        ExecutionError: Then; within moments.
    """
    while not leader.done():
        # A store notifies of new work only those who claim it, and what is claimed here would not be done.
        try:
            waiting = await store.query_rollouts(status_in=tuple(QUEUED), limit=1)
        except StoreClosed:  # by the algorithm, perhaps as the last thing that it does
            await asyncio.wait({leader}, timeout=LOOK_SECONDS)
            if not leader.done():
                raise
            return
        if waiting and not leader.done():
            raise _no_runner_left(waiting[0], n_runners)
        await asyncio.wait({leader}, timeout=LOOK_SECONDS)


def _no_runner_left(rollout: Rollout, n_runners: int) -> ExecutionError:
    return ExecutionError(
        f"all {n_runners} runners have reached their max_rollouts, and rollout {rollout.rollout_id} "
        "still waits; raise max_rollouts or n_runners"
    )


TELL_SECONDS = 5.0
"""How long a store may take to hear it."""

INTERRUPTED_TELL_SECONDS = 0.5
"""The same, when the run has failed or was interrupted: that should not take 2 s."""


async def signal_run_end(store: LightningStore, *, raised: BaseException | None = None) -> None:
    """Let there be no more work. What goes wrong is logged: runners that are elsewhere then wait on.

    Args:
        store: Where runners look for work.
        raised: What the run failed with, or was interrupted by; None where it has succeeded.
    """
    seconds = TELL_SECONDS if raised is None else INTERRUPTED_TELL_SECONDS
    try:
        async with asyncio.timeout(seconds):
            await store.end_run()
    except StoreClosed:  # by the algorithm, perhaps as the last thing that it does; who asks now hears of that
        return
    except (StoreError, TimeoutError) as exc:
        why = str(exc) or f"no answer within {seconds:g} s"
        logger.warning("lightning.run_end_not_told run_id=%s: %s; end runners elsewhere by hand", store.run_id, why)


END_GRACE_SECONDS = 1.2
"""How long a cancelled algorithm or runner may take to end. An interrupted run should end within 2 s."""


class LocalStrategy(ExecutionStrategy):
    """Runs the algorithm and the runners as tasks of the calling event loop.

    One that does not let itself be cancelled is abandoned after 1.2 s, and logged.

    Args:
        n_runners: How many rollouts run at the same time.
    """

    @deprecated(
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
                await wait_for_algorithm(leader, store, self.n_runners)
            raise_failure(leader)
        except BaseException as exc:
            await end_tasks([leader, *runners], raised=exc)
            await signal_run_end(store, raised=exc)
            raise
        await end_tasks(runners)
        await signal_run_end(store)

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


def leads(strategy: object) -> bool:
    """Whether the algorithm runs in this process, or only runners do."""
    return getattr(strategy, "role", None) != "runner"
