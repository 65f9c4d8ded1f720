"""The queue: rollouts are put in, and claimed with the key of their attempt."""

import logging
import time
from collections.abc import Sequence
from typing import Any

from lightning_core.errors import InvalidRequest
from lightning_core.types import AttemptedRollout, Rollout
from lightning_http import wire
from lightning_http.auth import Role
from lightning_http.call import Call
from lightning_http.messages import (
    MAX_CLAIMED,
    PREFIX,
    ClaimedRollout,
    DequeueManyRolloutsRequest,
    EnqueueManyRolloutsRequest,
    RolloutRequest,
    StartAttemptRequest,
)
from lightning_http.routing import CallOf, Routes

logger = logging.getLogger(__name__)

routes = Routes("queue", PREFIX)


@routes.post("/queues/rollouts/enqueue", status_code=201)
async def enqueue_rollouts(call: CallOf, body: EnqueueManyRolloutsRequest) -> list[Rollout]:
    """Create rollouts at the tail of the queue, all of them or none."""
    return list(await call.store.enqueue_many_rollouts(body.rollouts, request_id=call.request_id))


@routes.post("/queues/rollouts/dequeue", role=Role.RUNNER, claims=True)
async def dequeue_rollouts(call: CallOf, body: DequeueManyRolloutsRequest | None = None) -> list[ClaimedRollout]:
    """Claim the oldest queued rollouts; none where there is none, and the wait for one is over."""
    asked = body or DequeueManyRolloutsRequest()
    if asked.limit > MAX_CLAIMED:
        raise InvalidRequest(
            f"limit is {asked.limit}; one claim takes at most {MAX_CLAIMED:,} rollouts. Claim again for more"
        )
    work = call.store.dequeue_many_rollouts(
        limit=asked.limit, worker_id=asked.worker_id, wait_seconds=asked.wait_seconds, request_id=call.request_id
    )
    if asked.wait_seconds == 0:
        claimed = await work
    else:
        _, found = await call.wait(work, poll_seconds=asked.poll_seconds, until_drained=True)
        claimed = found or []
    return with_keys(call, await _sendable(call, claimed))


@routes.post("/rollouts", status_code=201, claims=True)
async def start_rollout(call: CallOf, body: RolloutRequest) -> ClaimedRollout:
    """Create a rollout and begin its first attempt at once, past the queue."""
    started = await call.store.start_rollout(
        body.input,
        body.mode,
        body.resources_id,
        body.config,
        body.metadata,
        body.worker_id,
        request_id=call.request_id,
    )
    claimed: ClaimedRollout = with_keys(call, [started])[0]
    return claimed


@routes.post("/rollouts/{rollout_id}/attempts", role=Role.RUNNER, status_code=201, claims=True)
async def start_attempt(call: CallOf, rollout_id: str, body: StartAttemptRequest | None = None) -> ClaimedRollout:
    """Begin another attempt of a rollout that has not ended, past the queue."""
    worker_id = None if body is None else body.worker_id
    started = await call.store.start_attempt(rollout_id, worker_id, request_id=call.request_id)
    claimed: ClaimedRollout = with_keys(call, [started])[0]
    return claimed


async def _sendable(call: Call, claimed: Sequence[AttemptedRollout]) -> Sequence[AttemptedRollout]:
    """Return the rollouts that JSON can hold; end the others, which nobody over HTTP can ever execute."""
    if all(_is_simple(rollout.input) and _is_simple(rollout.metadata) for rollout in claimed):
        return claimed
    sendable = []
    for rollout in claimed:
        try:
            wire.encode(rollout)
        except InvalidRequest as exc:
            failure = {"type": "InvalidRequest", "message": f"the rollout has no form in JSON: {exc}"}
            own = rollout.attempt.attempt_id
            await call.store.update_attempt(rollout.rollout_id, own, status="failed", metadata={"failure": failure})
            logger.error("lightning.rollout_not_sendable rollout_id=%s reason=%s", rollout.rollout_id, exc)
        else:
            sendable.append(rollout)
    return sendable


def _is_simple(value: Any) -> bool:
    """Whether a value is plainly JSON's, at the first look."""
    if type(value) is dict:
        return _SIMPLE.issuperset(map(type, value.values()))
    return type(value) in _SIMPLE


_SIMPLE = frozenset({str, int, float, bool, type(None)})


def with_keys(call: Call, claimed: Sequence[AttemptedRollout]) -> list[Any]:
    """Add the key of its attempt to each rollout, where keys are used."""
    keys = call.service.keys
    if not keys.required:
        return list(claimed)
    now, run_id = time.time(), call.store.run_id
    return [
        {**rollout.__dict__, "attempt_key": keys.mint(run_id, rollout.rollout_id, rollout.attempt.attempt_id, now)}
        for rollout in claimed
    ]
