"""Workers, and the saved state of algorithms."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from lightning_core.errors import InvalidRequest
from lightning_core.store.base import UNSET, Unset
from lightning_core.store.copies import copy_value, copy_worker
from lightning_core.store.parts.arguments import checked, named, page, pairs
from lightning_core.store.parts.base import StorePart
from lightning_core.store.query import make_query, select
from lightning_core.store.requests import make_request_of
from lightning_core.store.run_end import RUN_STATE
from lightning_core.types import FilterLogic, PaginatedResult, SortOrder, Worker, WorkerStatus


class WorkerPart(StorePart):
    """Those who execute attempts, and what algorithms want to find again."""

    async def update_worker(
        self,
        worker_id: str,
        heartbeat_stats: Mapping[str, Any] | Unset = UNSET,
        *,
        attempts: Sequence[tuple[str, str]] | Unset = UNSET,
        request_id: str | None = None,
    ) -> Worker:
        named("worker_id", worker_id)
        named_attempts = None if isinstance(attempts, Unset) else pairs("attempts", attempts)
        alive = None if named_attempts is None else {attempt_id for _, attempt_id in named_attempts}
        await self._look(
            gives_sign=lambda attempt: attempt.worker_id == worker_id if alive is None else attempt.attempt_id in alive
        )
        given = Worker(worker_id=worker_id, **checked(Worker, heartbeat_stats=heartbeat_stats))
        fields = given.model_dump(include={"heartbeat_stats"}, exclude_unset=True)
        request = make_request_of(request_id, "update_worker", fields, named_attempts)
        return copy_worker(await self._records.heartbeat(worker_id, fields, named_attempts, request=request))

    async def get_worker_by_id(self, worker_id: str) -> Worker | None:
        await self._look()
        return await self._documents.get("workers", worker_id, Worker)

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
        query = make_query(
            Worker,
            conditions={"status_in": status_in, "worker_id_contains": worker_id_contains},
            logic=filter_logic,
            sort_by=sort_by,
            sort_order=sort_order,
            limit=limit,
            offset=offset,
        )
        await self._look()
        found, total = select(await self._documents.all("workers", Worker), query)
        return page(found, query, total)

    async def save_state(self, name: str, state: Any, *, request_id: str | None = None) -> None:
        self._check_open()
        if name == RUN_STATE:
            raise InvalidRequest(f"{name!r} says whether the run has ended; call end_run or begin_run")
        try:
            text = json.dumps(state, allow_nan=False)
        except (TypeError, ValueError) as exc:
            raise InvalidRequest(f"the state of {name!r} cannot be saved as JSON: {exc}") from exc
        request = make_request_of(request_id, "save_state", text)
        await self._documents.put("state", name, json.loads(text), request=request)

    async def load_state(self, name: str) -> Any:
        self._check_open()
        document = await self._backend.get_document(self._run_id, "state", name)
        return None if document is None else copy_value(document.value)
