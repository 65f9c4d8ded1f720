"""What the store is told of an attempt's end."""

import asyncio
import logging
from typing import Any

from lightning_core.adapter.usage import METADATA as USAGE
from lightning_core.adapter.usage import as_metadata
from lightning_core.errors import InvalidTransition, NotFound, StoreUnavailable
from lightning_core.runner.outcome import Outcome, is_fault
from lightning_core.store import LightningStore
from lightning_core.types import Attempt, AttemptedRollout, Rollout

logger = logging.getLogger(__name__)

_MAX_KNOWN_FAULTS = 1000

LAST_WORDS_SECONDS = 0.5
"""How long a runner that is cancelled may take to give its rollout back. Somebody waits for its end."""


async def report(
    store: LightningStore, rollout: AttemptedRollout, outcome: Outcome, *, may_requeue: bool
) -> Attempt | None:
    """Record how an attempt went.

    Args:
        store: Where the rollout was claimed.
        rollout: The rollout, with the attempt.
        outcome: How it went.
        may_requeue: Whether a fault queues the rollout again; else it is cancelled.

    Returns:
        The attempt as it is now; None when the store had given it up with another status, or deleted it.

    Raises:
        Exception: What the store raised, when it is out of reach.
    """
    rollout_id, attempt_id, failure = rollout.rollout_id, rollout.attempt.attempt_id, outcome.failure
    told: dict[str, Any] = {}
    usage = outcome.usage
    if usage.calls:
        told[USAGE] = as_metadata(usage)
    try:
        if failure is not None and outcome.error is not None and outcome.is_fault:
            why = f"{failure['type']}: {failure['message']}"
            _log_fault(store, rollout.attempt, why, outcome.error)
            if told:  # a fault adds its reason, and ends the attempt
                await store.update_attempt(rollout_id, attempt_id, add_metadata=told)
            return await _fault(store, rollout, why, may_requeue=may_requeue)
        if failure is not None:
            told["failure"] = failure
        attempt = await store.update_attempt(rollout_id, attempt_id, status=outcome.status, add_metadata=told)
    except (InvalidTransition, NotFound) as exc:
        logger.warning("lightning.late_result rollout_id=%s attempt_id=%s: %s", rollout_id, attempt_id, exc)
        return None
    if failure is not None:
        logger.info(
            "lightning.attempt_failed rollout_id=%s attempt_id=%s status=%s: %s: %s",
            rollout_id,
            attempt_id,
            attempt.status,
            failure["type"],
            failure["message"],
            exc_info=outcome.error if logger.isEnabledFor(logging.DEBUG) else None,
        )
    return attempt


def has_succeeded_by(rollout: Rollout, attempt: Attempt) -> bool:
    """Whether a rollout has succeeded, and by this attempt: the result of one that was given up counts for nothing."""
    newest = rollout.attempt if isinstance(rollout, AttemptedRollout) else None
    is_newest = newest is not None and newest.attempt_id == attempt.attempt_id
    return is_newest and rollout.status == attempt.status == "succeeded"


async def give_back(
    store: LightningStore, rollout: AttemptedRollout, *, may_requeue: bool, reason: str = "its runner was stopped"
) -> None:
    """Say, shortly, that nobody works on an attempt any more: others need not wait until its lease is lost.

    Does nothing for one that has ended. What goes wrong is logged: then the lease has to do.
    """
    try:
        async with asyncio.timeout(LAST_WORDS_SECONDS):
            await _fault(store, rollout, reason, may_requeue=may_requeue)
    except (InvalidTransition, NotFound):
        return
    except (StoreUnavailable, TimeoutError) as exc:
        why = str(exc) or f"the store did not answer within {LAST_WORDS_SECONDS:g} s"
        logger.warning("lightning.rollout_not_given_back rollout_id=%s: %s", rollout.rollout_id, why)
    except Exception as exc:
        logger.warning("lightning.rollout_not_given_back rollout_id=%s", rollout.rollout_id, exc_info=exc)


async def give_back_claimed(store: LightningStore, worker_id: str, request_id: str) -> None:
    """Give back what a claim that was cancelled may have got all the same: the store may have answered in vain.

    Nobody else would know of it until its lease is lost.
    """
    try:
        async with asyncio.timeout(LAST_WORDS_SECONDS):
            # None beyond: a claim that has not reached the store is for nobody to begin now.
            claimed = await store.dequeue_many_rollouts(limit=0, worker_id=worker_id, request_id=request_id)
    except Exception as exc:  # such as a store that is gone: then the lease has to do
        logger.info("lightning.claim_not_given_back worker_id=%s: %s", worker_id, exc)
        return
    for rollout in claimed:
        await give_back(store, rollout, may_requeue=True)


_known_faults: set[tuple[str, str]] = set()
"""By run, the faults that a warning was logged of. Of a model that is down each attempt has one."""


def _log_fault(store: LightningStore, attempt: Attempt, why: str, error: Exception) -> None:
    """Log a fault: the first of its kind in a run as a warning, with a traceback where it is a surprise."""
    is_known = (store.run_id, why) in _known_faults
    if len(_known_faults) >= _MAX_KNOWN_FAULTS:
        _known_faults.clear()
    _known_faults.add((store.run_id, why))
    shows_traceback = logger.isEnabledFor(logging.DEBUG) or not (is_known or is_fault(error))
    logger.log(
        logging.INFO if is_known else logging.WARNING,
        "lightning.fault rollout_id=%s attempt_id=%s: %s%s",
        attempt.rollout_id,
        attempt.attempt_id,
        why,
        "" if is_known else "; further ones like this are logged at level INFO",
        exc_info=error if shows_traceback else None,
    )


async def _fault(store: LightningStore, rollout: AttemptedRollout, reason: str, *, may_requeue: bool) -> Attempt:
    if not may_requeue:
        await store.update_rollout(rollout.rollout_id, status="cancelled")
    return await store.report_fault(rollout.rollout_id, rollout.attempt.attempt_id, reason)
