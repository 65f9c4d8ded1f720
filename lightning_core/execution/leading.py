"""The algorithm's side of a run: what it ends by, and what is queued when nobody is left to do it."""

import asyncio
from typing import Any

from lightning_core.errors import ExecutionError, StoreClosed
from lightning_core.lifecycle import QUEUED
from lightning_core.store import LightningStore
from lightning_core.types import Rollout

LOOK_SECONDS = 0.2
"""How often to look for work that nobody is left to do: one query each time, once all runners have ended."""


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

    Such work stays in the queue, for runners that come later.

    Raises:
        ExecutionError: Then; within moments.
    """
    while not leader.done():
        # A store tells of new work only to those who claim it, and what is claimed here nobody would do.
        try:
            waiting = await store.query_rollouts(status_in=tuple(QUEUED), limit=1)
        except StoreClosed:  # by the algorithm, perhaps as the last thing that it does
            await asyncio.wait({leader}, timeout=LOOK_SECONDS)
            if not leader.done():
                raise
            return
        if waiting and not leader.done():
            raise _nobody_left(waiting[0], n_runners)
        await asyncio.wait({leader}, timeout=LOOK_SECONDS)


def _nobody_left(rollout: Rollout, n_runners: int) -> ExecutionError:
    return ExecutionError(
        f"all {n_runners} runners have reached their max_rollouts, and rollout {rollout.rollout_id} "
        "still waits; raise max_rollouts or n_runners"
    )
