"""Spans, resources, workers and saved state, by requests."""

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lightning_core.errors import InvalidRequest
from lightning_core.store.base import UNSET, Unset
from lightning_core.store.http.asking import Asking, given, quoted
from lightning_core.store.http.spans import read_spans
from lightning_core.store.http.wire import RESOURCES, WORKERS
from lightning_core.types import (
    FilterLogic,
    NamedResources,
    PaginatedResult,
    ResourcesUpdate,
    SortOrder,
    Span,
    Worker,
    WorkerStatus,
)
from lightning_core.types.span import plain_attributes

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan


class RecordsClient(Asking):
    """The methods of a store that are about spans, resources, workers and saved state."""

    # Spans

    async def add_span(self, span: Span) -> Span | None:
        stored = await self.add_many_spans([span])
        return stored[0] if stored else None

    async def add_many_spans(self, spans: Sequence[Span]) -> Sequence[Span]:
        given_spans = list(spans)
        try:
            data = await self._search("/spans/bulk", {"spans": given_spans})
        except InvalidRequest:
            for span in given_spans:
                _check_attributes(span)
            raise
        return [
            span if span.sequence_id == number else span.model_copy(update={"sequence_id": number})
            for span, number in zip(given_spans, data["sequence_ids"], strict=True)
            if number is not None
        ]

    async def add_otel_span(
        self, rollout_id: str, attempt_id: str, readable_span: "ReadableSpan", sequence_id: int | None = None
    ) -> Span | None:
        return await self.add_span(Span.from_opentelemetry(readable_span, rollout_id, attempt_id, sequence_id or 0))

    async def get_next_span_sequence_id(self, rollout_id: str, attempt_id: str) -> int:
        body = {"rollout_id": rollout_id, "attempt_id": attempt_id}
        return int((await self._search("/spans/next", body))["sequence_id"])

    async def get_many_span_sequence_ids(self, rollout_attempt_ids: Sequence[tuple[str, str]]) -> Sequence[int]:
        body = {"attempts": [list(pair) for pair in rollout_attempt_ids]}
        numbers: list[int] = (await self._search("/spans/next/bulk", body))["sequence_ids"]
        return numbers

    async def query_spans(
        self,
        rollout_id: str,
        attempt_id: str | None = None,
        *,
        trace_id: str | None = None,
        trace_id_contains: str | None = None,
        span_id: str | None = None,
        span_id_contains: str | None = None,
        parent_id: str | None = None,
        parent_id_contains: str | None = None,
        name: str | None = None,
        name_contains: str | None = None,
        filter_logic: FilterLogic = "and",
        limit: int = -1,
        offset: int = 0,
        sort_by: str | None = "sequence_id",
        sort_order: SortOrder = "asc",
    ) -> PaginatedResult[Span]:
        body = {
            "rollout_id": rollout_id,
            "attempt_id": attempt_id,
            "trace_id": trace_id,
            "trace_id_contains": trace_id_contains,
            "span_id": span_id,
            "span_id_contains": span_id_contains,
            "parent_id": parent_id,
            "parent_id_contains": parent_id_contains,
            "name": name,
            "name_contains": name_contains,
            "filter_logic": filter_logic,
            "sort_by": sort_by,
            "sort_order": sort_order,
        }
        return await self._find("/spans/search", body, limit, offset, read_spans)

    # Resources

    async def add_resources(self, resources: NamedResources, *, request_id: str | None = None) -> ResourcesUpdate:
        return ResourcesUpdate.model_validate(await self._change("/resources", dict(resources), request_id))

    async def update_resources(
        self, resources_id: str, resources: NamedResources, *, request_id: str | None = None
    ) -> ResourcesUpdate:
        path = f"/resources/{quoted(resources_id)}"
        return ResourcesUpdate.model_validate(await self._change(path, dict(resources), request_id))

    async def get_resources_by_id(self, resources_id: str) -> ResourcesUpdate | None:
        data = await self._get_or_none(f"/resources/{quoted(resources_id)}")
        return None if data is None else ResourcesUpdate.model_validate(data)

    async def get_latest_resources(self) -> ResourcesUpdate | None:
        data = await self._get("/resources/latest")
        return None if data is None else ResourcesUpdate.model_validate(data)

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
        body = {
            "resources_id": resources_id,
            "resources_id_contains": resources_id_contains,
            "sort_by": sort_by,
            "sort_order": sort_order,
        }
        return await self._find("/resources/search", body, limit, offset, RESOURCES.validate_python)

    # Workers

    async def update_worker(
        self,
        worker_id: str,
        heartbeat_stats: Mapping[str, Any] | Unset = UNSET,
        *,
        attempts: Sequence[tuple[str, str]] | Unset = UNSET,
        request_id: str | None = None,
    ) -> Worker:
        path, body = f"/workers/{quoted(worker_id)}", given(heartbeat_stats=heartbeat_stats, attempts=attempts)
        # Without an id of its own: a heartbeat that is repeated is one more, and the server need not remember it.
        answer = await (self._search(path, body) if request_id is None else self._change(path, body, request_id))
        return Worker.model_validate(answer)

    async def get_worker_by_id(self, worker_id: str) -> Worker | None:
        data = await self._get_or_none(f"/workers/{quoted(worker_id)}")
        return None if data is None else Worker.model_validate(data)

    async def query_workers(
        self,
        *,
        status_in: Sequence[WorkerStatus] | None = None,
        worker_id_contains: str | None = None,
        filter_logic: FilterLogic = "and",
        sort_by: str | None = None,
        sort_order: SortOrder = "asc",
        limit: int = -1,
        offset: int = 0,
    ) -> PaginatedResult[Worker]:
        body = {
            "status_in": status_in,
            "worker_id_contains": worker_id_contains,
            "filter_logic": filter_logic,
            "sort_by": sort_by,
            "sort_order": sort_order,
        }
        return await self._find("/workers/search", body, limit, offset, WORKERS.validate_python)

    # The saved state of algorithms, and the run

    async def save_state(self, name: str, state: Any, *, request_id: str | None = None) -> None:
        try:
            text = json.dumps(state, allow_nan=False)
        except (TypeError, ValueError) as exc:
            raise InvalidRequest(f"the state of {name!r} cannot be saved as JSON: {exc}") from exc
        await self._change("/state", {"name": name, "state": json.loads(text)}, request_id, method="PUT")

    async def load_state(self, name: str) -> Any:
        return (await self._get(f"/state?name={quoted(name)}"))["state"]

    async def begin_run(self, *, request_id: str | None = None) -> None:
        await self._change("/run/begin", None, request_id)

    async def end_run(self, *, request_id: str | None = None) -> None:
        await self._change("/run/end", None, request_id)

    async def delete_run(self) -> None:
        await self._change("/run", None, None, method="DELETE")


def _check_attributes(span: Span) -> None:
    """Raise what the store itself would: the server only sees what JSON made of it.

    Raises:
        InvalidRequest: Names the attribute that spans do not take.
    """
    try:
        plain_attributes(span.attributes)
    except ValueError as exc:
        raise InvalidRequest(str(exc)) from exc
