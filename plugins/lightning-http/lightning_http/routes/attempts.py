"""Attempts: read, reported on."""

from typing import Annotated, Any

from fastapi import Query

from lightning_core.types import Attempt, PaginatedResult
from lightning_http.auth import Role
from lightning_http.call import Call
from lightning_http.messages import PREFIX, FaultRequest, QueryAttemptsRequest, UpdateAttemptRequest
from lightning_http.routing import CallOf, Routes

routes = Routes("attempts", PREFIX)


@routes.get("/rollouts/{rollout_id}/attempts", role=Role.RUNNER)
async def query_attempts(
    call: CallOf, rollout_id: str, query: Annotated[QueryAttemptsRequest, Query()]
) -> PaginatedResult[Attempt]:
    """List the attempts of a rollout."""
    fields = query.model_dump()
    limit = fields.pop("limit")
    return call.whole(await call.store.query_attempts(rollout_id, **fields, limit=call.page(limit)), limit)


@routes.post("/rollouts/{rollout_id}/attempts/search", role=Role.RUNNER)
async def search_attempts(call: CallOf, rollout_id: str, body: QueryAttemptsRequest) -> PaginatedResult[Attempt]:
    """List the attempts of a rollout, as the body says."""
    found: PaginatedResult[Attempt] = await query_attempts(call, rollout_id, body)
    return found


@routes.get("/rollouts/{rollout_id}/attempts/latest", role=Role.RUNNER)
async def get_latest_attempt(call: CallOf, rollout_id: str) -> Attempt | None:
    """Get the newest attempt of a rollout; null when it has none yet."""
    return await call.store.get_latest_attempt(rollout_id)


@routes.post("/rollouts/{rollout_id}/attempts/{attempt_id}/fault", role=Role.RUNNER)
async def report_fault(call: CallOf, rollout_id: str, attempt_id: str, body: FaultRequest) -> Attempt:
    """End an attempt for a reason that is not the agent's; its rollout is queued again."""
    ended = await call.store.report_fault(rollout_id, attempt_id, body.reason, request_id=call.request_id)
    call.service.reported.set()
    return ended


@routes.post("/rollouts/{rollout_id}/attempts/{attempt_id}", role=Role.RUNNER)
async def update_attempt(call: CallOf, rollout_id: str, attempt_id: str, body: UpdateAttemptRequest) -> Attempt:
    """Change the fields of an attempt that are given; its rollout and its worker follow."""
    fields = body.model_dump(include=body.model_fields_set)
    return await change_attempt(call, rollout_id, attempt_id, fields, call.request_id)


async def change_attempt(
    call: Call, rollout_id: str, attempt_id: str, fields: dict[str, Any], request_id: str | None
) -> Attempt:
    """Change the fields of an attempt that are given."""
    changed = await call.store.update_attempt(rollout_id, attempt_id, **fields, request_id=request_id)
    call.service.reported.set()
    return changed
