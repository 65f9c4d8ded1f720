"""The end of a server that is told to stop while attempts run."""

import asyncio
import logging

from lightning_core.errors import StoreError
from lightning_core.store.base import LightningStore
from lightning_core.store.http.service import Service
from lightning_core.types import AttemptedRollout, Rollout

logger = logging.getLogger(__name__)


async def drain(service: Service, *, seconds: float, hurry: asyncio.Event) -> None:
    """Give no more claims, and wait for the attempts that run.

    Reports and spans are taken as before. An attempt that has not ended in time goes on, where its worker holds a
    lease: it reports to the next server of the store, or loses its lease. Of the others nobody would ever know, so
    they are released: their rollouts are queued again.

    Args:
        service: What the server's requests share.
        seconds: How long to wait.
        hurry: Set to stop waiting.
    """
    service.draining.set()
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    hurried = asyncio.create_task(hurry.wait())
    try:
        while running := await _running(service):
            service.reported.clear()
            reported = asyncio.create_task(service.reported.wait())
            try:
                left = deadline - loop.time()
                await asyncio.wait([reported, hurried], timeout=max(left, 0.0), return_when=asyncio.FIRST_COMPLETED)
            finally:
                reported.cancel()
                await asyncio.gather(reported, return_exceptions=True)
            if hurried.done() or loop.time() >= deadline:
                break
    finally:
        hurried.cancel()
        await asyncio.gather(hurried, return_exceptions=True)
    for store, rollout in running:
        await _release(store, rollout)


async def _running(service: Service) -> list[tuple[LightningStore, Rollout]]:
    return [
        (store, rollout)
        for store in service.views()
        for rollout in await store.query_rollouts(status_in=["preparing", "running"])
    ]


async def _release(store: LightningStore, rollout: Rollout) -> None:
    if not isinstance(rollout, AttemptedRollout):
        return
    worker_id, attempt_id = rollout.attempt.worker_id, rollout.attempt.attempt_id
    worker = None if worker_id is None else await store.get_worker_by_id(worker_id)
    if worker is not None and worker.last_heartbeat_time is not None:
        return
    try:
        await store.report_fault(rollout.rollout_id, attempt_id, "the store's server was stopped while it ran")
    except StoreError as exc:  # it has ended since
        logger.info("lightning.attempt_not_released attempt_id=%s reason=%s", attempt_id, exc)
