"""The rollouts that an algorithm learns from: each is run once, also after a kill."""

from collections.abc import Iterable, Sequence

from lightning_proxy import LLMProxy
from lightning_proxy.outbox import CallsLost

from lightning_core.errors import InvalidTransition, StoreUnavailable
from lightning_core.store import LightningStore
from lightning_core.types import AttemptedRollout, EnqueueRolloutRequest, Rollout, Span
from lightning_tokens.learning.outcomes import is_lost


async def cancel_unfinished(store: LightningStore) -> None:
    """Cancel what a process that was killed has left unfinished: the model that it was given is not there now.

    What is still wanted is enqueued again when its step comes.
    """
    left = await store.query_rollouts(status_in=("queuing", "requeuing", "preparing", "running"))
    await cancel_all(store, (each.rollout_id for each in left if "work" in (each.metadata or {})))


async def cancel_all(store: LightningStore, rollout_ids: Iterable[str]) -> None:
    """Cancel those rollouts that have not ended."""
    for rollout_id in rollout_ids:
        try:
            await store.update_rollout(rollout_id, status="cancelled")
        except InvalidTransition:  # it ended just now
            continue


async def enqueue_unless_lost(
    store: LightningStore, requests: Sequence[EnqueueRolloutRequest], request_id: str
) -> list[Rollout]:
    """Enqueue rollouts, or find those of before a kill; those that it left unfinished are enqueued again.

    Args:
        store: Where runners look for work.
        requests: What to run.
        request_id: Of this batch: the same again finds what there is.
    """
    rollouts = list(await store.enqueue_many_rollouts(requests, request_id=request_id))
    while lost := [place for place, rollout in enumerate(rollouts) if await _is_lost(store, rollout)]:
        # Left unfinished by a kill, or done without its proxy.
        request_id = f"{request_id}/{rollouts[lost[0]].rollout_id}"
        again = await store.enqueue_many_rollouts([requests[place] for place in lost], request_id=request_id)
        for place, rollout in zip(lost, again, strict=True):
            rollouts[place] = rollout
    return rollouts


async def _is_lost(store: LightningStore, rollout: Rollout) -> bool:
    if rollout.status != "failed":
        return is_lost(rollout)
    return is_lost(await store.get_rollout_by_id(rollout.rollout_id) or rollout)


async def record_of(rollout: Rollout, *, store: LightningStore, proxy: LLMProxy) -> Sequence[Span] | str:
    """Return what the last attempt of a rollout has recorded, or why the store will not have all of it."""
    if isinstance(rollout, AttemptedRollout) and proxy.is_running():
        try:
            await proxy.flush(rollout.rollout_id, rollout.attempt.attempt_id)
        except (CallsLost, StoreUnavailable) as exc:  # a store that is gone for good says so itself
            return str(exc)
    return await store.query_spans(rollout.rollout_id, "latest")
