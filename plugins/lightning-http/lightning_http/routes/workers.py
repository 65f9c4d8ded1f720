"""Workers: heartbeats, and what is known of them."""

from typing import Annotated

from fastapi import Query

from lightning_core.errors import NotFound
from lightning_core.store.base import UNSET
from lightning_core.types import PaginatedResult, Worker
from lightning_http.auth import Role
from lightning_http.messages import PREFIX, QueryWorkersRequest, UpdateWorkerRequest
from lightning_http.routing import CallOf, Routes

routes = Routes("workers", PREFIX)


@routes.get("/workers", role=Role.RUNNER)
async def query_workers(call: CallOf, query: Annotated[QueryWorkersRequest, Query()]) -> PaginatedResult[Worker]:
    """Find workers."""
    fields = query.model_dump()
    limit = fields.pop("limit")
    return call.whole(await call.store.query_workers(**fields, limit=call.page(limit)), limit)


@routes.post("/workers/search", role=Role.RUNNER)
async def search_workers(call: CallOf, body: QueryWorkersRequest) -> PaginatedResult[Worker]:
    """Find workers, with the conditions in the body."""
    found: PaginatedResult[Worker] = await query_workers(call, body)
    return found


@routes.get("/workers/{worker_id:path}", role=Role.RUNNER)
async def get_worker(call: CallOf, worker_id: str) -> Worker:
    """Get what is known of a worker."""
    found = await call.store.get_worker_by_id(worker_id)
    if found is None:
        raise NotFound(f"run {call.store.run_id} has no worker {worker_id!r}")
    return found


@routes.post("/workers/{worker_id:path}", role=Role.RUNNER)
async def update_worker(call: CallOf, worker_id: str, body: UpdateWorkerRequest | None = None) -> Worker:
    """Record a heartbeat; the worker is made known by it."""
    given = body is not None and "heartbeat_stats" in body.model_fields_set
    stats = body.heartbeat_stats if body is not None and given else UNSET
    attempts = UNSET if body is None or body.attempts is None else body.attempts
    return await call.store.update_worker(worker_id, stats, attempts=attempts, request_id=call.request_id)
