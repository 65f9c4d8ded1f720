"""Resources: what an algorithm tunes, version by version."""

from typing import Any, cast

from pydantic import TypeAdapter, ValidationError

from lightning_core.errors import InvalidRequest
from lightning_core.store.copies import copy_value
from lightning_core.store.parts.arguments import page
from lightning_core.store.parts.base import StorePart
from lightning_core.store.query import make_query, select
from lightning_core.store.records import make_id
from lightning_core.store.requests import make_request_of
from lightning_core.types import NamedResources, PaginatedResult, ProxyLLM, ResourcesUpdate, SortOrder

_RESOURCES: TypeAdapter[NamedResources] = TypeAdapter(NamedResources)


class ResourcePart(StorePart):
    """Versions of the resources."""

    async def add_resources(self, resources: NamedResources, *, request_id: str | None = None) -> ResourcesUpdate:
        resources_id = make_id("rs", self._run_id, request_id)
        return await self.update_resources(resources_id, resources, request_id=request_id)

    async def update_resources(
        self, resources_id: str, resources: NamedResources, *, request_id: str | None = None
    ) -> ResourcesUpdate:
        self._check_open()
        try:
            bundle = _RESOURCES.validate_python(resources)
        except ValidationError as exc:
            place = ".".join(str(part) for part in exc.errors()[0]["loc"])
            raise InvalidRequest(f"this is no bundle of resources, see {place!r}: {exc.errors()[0]['msg']}") from None
        now = self._clock.now()

        def change(present: dict[str, Any] | None) -> dict[str, Any]:
            update = ResourcesUpdate(
                resources_id=resources_id,
                create_time=now if present is None else present["create_time"],
                update_time=now,
                version=1 if present is None else present["version"] + 1,
                resources=bundle,
            )
            return cast("dict[str, Any]", copy_value(update.model_dump()))

        request = make_request_of(request_id, "update_resources", _without_addresses(bundle))
        value = await self._documents.change("resources", resources_id, change, request=request)
        return ResourcesUpdate.model_validate(copy_value(value))

    async def get_resources_by_id(self, resources_id: str) -> ResourcesUpdate | None:
        self._check_open()
        return await self._documents.get("resources", resources_id, ResourcesUpdate)

    async def get_latest_resources(self) -> ResourcesUpdate | None:
        self._check_open()
        latest = await self._documents.latest_key("resources")
        return None if latest is None else await self._documents.get("resources", latest, ResourcesUpdate)

    async def query_resources(
        self,
        *,
        resources_id: str | None = None,
        resources_id_contains: str | None = None,
        sort_by: str | None = None,
        sort_order: SortOrder = "asc",
        limit: int = -1,
        offset: int = 0,
    ) -> PaginatedResult[ResourcesUpdate]:
        query = make_query(
            ResourcesUpdate,
            conditions={"resources_id": resources_id, "resources_id_contains": resources_id_contains},
            sort_by=sort_by,
            sort_order=sort_order,
            limit=limit,
            offset=offset,
        )
        self._check_open()
        found, total = select(await self._documents.all("resources", ResourcesUpdate), query)
        return page(found, query, total)


def _without_addresses(bundle: NamedResources) -> NamedResources:
    """Leave out where proxies are: a run that goes on makes the same request, and its proxy has another port."""
    return {
        name: resource.model_copy(update={"endpoint": ""}) if isinstance(resource, ProxyLLM) else resource
        for name, resource in bundle.items()
    }
