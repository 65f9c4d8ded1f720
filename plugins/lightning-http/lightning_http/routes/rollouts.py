"""Rollouts: read, changed, cancelled, waited for, deleted."""

from typing import Annotated, Any

from fastapi import Query

from lightning_core.errors import AccessDenied, NotFound
from lightning_core.types import AttemptedRollout, PaginatedResult, Rollout
from lightning_http.auth import Role
from lightning_http.call import Call
from lightning_http.messages import (
    PREFIX,
    Deleted,
    DeleteRolloutsRequest,
    QueryRolloutsRequest,
    UpdateRolloutRequest,
    WaitForRolloutsRequest,
)
from lightning_http.routing import CallOf, Routes

routes = Routes("rollouts", PREFIX)

AnyRollout = AttemptedRollout | Rollout


@routes.get("/rollouts", role=Role.RUNNER)
async def query_rollouts(call: CallOf, query: Annotated[QueryRolloutsRequest, Query()]) -> PaginatedResult[AnyRollout]:
    """Find rollouts."""
    fields = query.model_dump()
    limit = fields.pop("limit")
    return call.whole(await call.store.query_rollouts(**fields, limit=call.page(limit)), limit)


@routes.post("/rollouts/search", role=Role.RUNNER)
async def search_rollouts(call: CallOf, body: QueryRolloutsRequest) -> PaginatedResult[AnyRollout]:
    """Find rollouts, with the conditions in the body."""
    found: PaginatedResult[AnyRollout] = await query_rollouts(call, body)
    return found


@routes.post("/rollouts/delete")
async def delete_rollouts(call: CallOf, body: DeleteRolloutsRequest) -> Deleted:
    """Delete rollouts that have ended, with their attempts and spans."""
    return Deleted(deleted=await call.store.delete_rollouts(body.rollout_ids))


@routes.post("/waits/rollouts", role=Role.RUNNER)
async def wait_for_rollouts(call: CallOf, body: WaitForRolloutsRequest) -> list[AnyRollout]:
    """Wait until rollouts have ended, or so many of them; what has ended by then."""
    work = call.store.wait_for_rollouts(rollout_ids=body.rollout_ids, timeout=body.timeout, min_ended=body.min_ended)
    if body.timeout == 0:
        return list(await work)
    done, ended = await call.wait(work, poll_seconds=body.poll_seconds)
    if not done:
        ended = await call.store.wait_for_rollouts(rollout_ids=body.rollout_ids, timeout=0, min_ended=body.min_ended)
    return list(ended or [])


@routes.get("/rollouts/{rollout_id}", role=Role.RUNNER)
async def get_rollout_by_id(call: CallOf, rollout_id: str) -> AnyRollout:
    """Get a rollout, with its newest attempt where it has one."""
    found = await call.store.get_rollout_by_id(rollout_id)
    if found is None:
        raise NotFound(f"run {call.store.run_id} has no rollout {rollout_id!r}")
    return found


@routes.post("/rollouts/{rollout_id}/cancel", role=Role.RUNNER)
async def cancel_rollout(call: CallOf, rollout_id: str) -> AnyRollout:
    """Cancel a rollout that has not ended; twice is one effect."""
    cancelled = await call.store.update_rollout(rollout_id, status="cancelled", request_id=call.request_id)
    call.service.reported.set()
    return cancelled


@routes.post("/rollouts/{rollout_id}", role=Role.RUNNER)
async def update_rollout(call: CallOf, rollout_id: str, body: UpdateRolloutRequest) -> AnyRollout:
    """Change the fields of a rollout that are given. A runner's key can cancel, and nothing else."""
    return await change_rollout(call, rollout_id, body.model_dump(include=body.model_fields_set), call.request_id)


async def change_rollout(call: Call, rollout_id: str, fields: dict[str, Any], request_id: str | None) -> Rollout:
    """Change the fields of a rollout that are given."""
    if call.identity.role < Role.ALGORITHM and fields != {"status": "cancelled"}:
        raise AccessDenied("a key of a runner can cancel a rollout; to change it otherwise takes the algorithm's key")
    changed = await call.store.update_rollout(rollout_id, **fields, request_id=request_id)
    call.service.reported.set()
    return changed
