"""What a dead runner process worked on goes back to the queue."""

import logging

from lightning_core.errors import InvalidTransition, NotFound, StoreError
from lightning_core.store import LightningStore

logger = logging.getLogger(__name__)


async def release(store: LightningStore, token: str, reason: str) -> None:
    """Report the attempts of workers that are gone as faults, so that nobody waits until their leases lapse.

    What goes wrong is logged: then the leases have to do.

    Args:
        store: Where they claimed.
        token: Is part of the ids of these workers, and of no others.
        reason: What happened to them.
    """
    try:
        for worker in await store.query_workers(worker_id_contains=token):
            if worker.current_rollout_id is not None and worker.current_attempt_id is not None:
                try:
                    await store.report_fault(worker.current_rollout_id, worker.current_attempt_id, reason)
                except (InvalidTransition, NotFound) as exc:  # it has ended, or was deleted
                    logger.info("lightning.attempt_not_released attempt_id=%s: %s", worker.current_attempt_id, exc)
    except StoreError as exc:
        logger.warning("lightning.rollouts_not_released workers=%s", token, exc_info=exc)
