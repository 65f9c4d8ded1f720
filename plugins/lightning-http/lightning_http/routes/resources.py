"""Versions of the resources."""

from typing import Annotated, Any

from fastapi import Query
from pydantic import WithJsonSchema

from lightning_core.errors import NotFound
from lightning_core.types import PaginatedResult, ResourcesUpdate
from lightning_http.auth import Role
from lightning_http.messages import PREFIX, QueryResourcesRequest
from lightning_http.routing import CallOf, Routes

routes = Routes("resources", PREFIX)

Bundle = Annotated[
    dict[str, Any],
    WithJsonSchema(
        {
            "type": "object",
            "title": "NamedResources",
            "additionalProperties": {
                "type": "object",
                "required": ["resource_type"],
                "properties": {"resource_type": {"enum": ["llm", "proxy_llm", "prompt_template"]}},
            },
        }
    ),
]
"""What a bundle of resources is, is judged by the store."""


@routes.get("/resources", role=Role.RUNNER)
async def query_resources(
    call: CallOf, query: Annotated[QueryResourcesRequest, Query()]
) -> PaginatedResult[ResourcesUpdate]:
    """Find versions of the resources."""
    fields = query.model_dump()
    limit = fields.pop("limit")
    return call.whole(await call.store.query_resources(**fields, limit=call.page(limit)), limit)


@routes.post("/resources/search", role=Role.RUNNER)
async def search_resources(call: CallOf, body: QueryResourcesRequest) -> PaginatedResult[ResourcesUpdate]:
    """Find versions of the resources, with the conditions in the body."""
    found: PaginatedResult[ResourcesUpdate] = await query_resources(call, body)
    return found


@routes.post("/resources", status_code=201)
async def add_resources(call: CallOf, body: Bundle) -> ResourcesUpdate:
    """Add a new version, which becomes the latest one."""
    return await call.store.add_resources(body, request_id=call.request_id)


@routes.get("/resources/latest", role=Role.RUNNER)
async def get_latest_resources(call: CallOf) -> ResourcesUpdate | None:
    """Get the version that was added or updated last; null when there is none."""
    return await call.store.get_latest_resources()


@routes.post("/resources/{resources_id:path}")
async def update_resources(call: CallOf, resources_id: str, body: Bundle) -> ResourcesUpdate:
    """Replace the bundle of a version, or add one under this id; it becomes the latest one."""
    return await call.store.update_resources(resources_id, body, request_id=call.request_id)


@routes.get("/resources/{resources_id:path}", role=Role.RUNNER)
async def get_resources_by_id(call: CallOf, resources_id: str) -> ResourcesUpdate:
    """Get a version of the resources."""
    found = await call.store.get_resources_by_id(resources_id)
    if found is None:
        raise NotFound(f"run {call.store.run_id} has no resources {resources_id!r}")
    return found
