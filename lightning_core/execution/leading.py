"""The algorithm's side of a run: what it ends by, and what is queued when nobody is left to do it."""

import asyncio
from typing import Any

from lightning_core.errors import ExecutionError
from lightning_core.lifecycle import QUEUED
from lightning_core.runner.reports import give_back
from lightning_core.store import LightningStore
from lightning_core.types import Rollout


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


async def lead_without_runners(leader: "asyncio.Task[None]", store: LightningStore, n_runners: int) -> None:
    """Let the algorithm come to its end, unless it queues work that nobody is left to do.

    Raises:
        ExecutionError: Then.
    """
    waiting = await store.query_rollouts(status_in=tuple(QUEUED), limit=1)
    if waiting and not leader.done():
        raise _nobody_left(waiting[0], n_runners)
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
        raise _nobody_left(rollout, n_runners)


def _nobody_left(rollout: Rollout, n_runners: int) -> ExecutionError:
    return ExecutionError(
        f"all {n_runners} runners have reached their max_rollouts, and rollout {rollout.rollout_id} "
        "still waits; raise max_rollouts or n_runners"
    )
