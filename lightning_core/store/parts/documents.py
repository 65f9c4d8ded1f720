"""Spans, resources, workers, and saved state."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from pydantic import TypeAdapter, ValidationError

from lightning_core import lifecycle
from lightning_core.errors import InvalidRequest
from lightning_core.lifecycle import RolloutRecord
from lightning_core.reported import as_reported, is_reported
from lightning_core.rewards import Arrival, may_have_reward
from lightning_core.store.base import UNSET, LightningStore, Unset
from lightning_core.store.copies import copy_value, copy_worker, own_spans
from lightning_core.store.parts.arguments import (
    StorePart,
    as_pairs,
    check_str,
    make_page,
    query_method,
    validate_fields,
)
from lightning_core.store.query import Query, select
from lightning_core.store.records import make_id
from lightning_core.store.requests import make_request_of
from lightning_core.store.run_end import RUN_STATE
from lightning_core.types import (
    NamedResources,
    PaginatedResult,
    ProxyLLM,
    ResourcesUpdate,
    Span,
    Worker,
)
from lightning_core.types.frozen import clone
from lightning_core.types.span import MAX_SEQUENCE_ID

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan


class SpanPart(StorePart):
    """What attempts record."""

    async def add_span(self, span: Span) -> Span | None:
        stored = await self.add_many_spans([span])
        return stored[0] if stored else None

    async def add_many_spans(self, spans: Sequence[Span]) -> Sequence[Span]:
        largest = max((span.sequence_id for span in spans), default=0)
        if largest > MAX_SEQUENCE_ID:
            raise InvalidRequest(
                f"sequence_id is {largest}; it is at most {MAX_SEQUENCE_ID}, or 0 to have the store number the span"
            )
        await self._look(gives_sign=lambda attempt: any(span.attempt_id == attempt.attempt_id for span in spans))
        attempts = [(span.rollout_id, span.attempt_id) for span in spans]
        records = await self._records.of_attempts(dict.fromkeys(attempts))
        spans = [
            as_reported(span, "late") if is_reported(span.attributes) and _has_ended(records, span) else span
            for span in spans
        ]
        try:
            own = own_spans(spans)
        except ValueError as exc:
            raise InvalidRequest(str(exc)) from exc
        kept = await self._backend.append_spans(self._run_id, own)
        alive: set[tuple[str, str]] = set()
        rewards: dict[tuple[str, str], list[Arrival]] = {}
        for attempt, span, number in zip(attempts, spans, kept, strict=True):
            is_new = number is not None
            if is_new:
                alive.add(attempt)
            if may_have_reward(span):
                known = span.sequence_id if number is None else number
                arrival = Arrival(span, known, is_new, is_last=is_new and span.sequence_id == 0)
                rewards.setdefault(attempt, []).append(arrival)
        arrivals = [
            self._records.spans_arrived(record, attempt[1], any_new=attempt in alive, rewards=rewards.get(attempt, ()))
            for attempt, record in records.items()
        ]
        if len(arrivals) == 1:
            await arrivals[0]
        elif arrivals:  # each has a record of its own; a database may write them together
            await asyncio.gather(*arrivals)
        return [
            span if span.sequence_id == number else clone(span, sequence_id=number)
            for span, number in zip(spans, kept, strict=True)
            if number is not None
        ]

    async def add_otel_span(
        self, rollout_id: str, attempt_id: str, readable_span: "ReadableSpan", sequence_id: int | None = None
    ) -> Span | None:
        return await self.add_span(Span.from_opentelemetry(readable_span, rollout_id, attempt_id, sequence_id or 0))

    async def get_next_span_sequence_id(self, rollout_id: str, attempt_id: str) -> int:
        return (await self.get_many_span_sequence_ids([(rollout_id, attempt_id)]))[0]

    async def get_many_span_sequence_ids(self, rollout_attempt_ids: Sequence[tuple[str, str]]) -> Sequence[int]:
        self._check_open()
        await self._records.of_attempts(set(rollout_attempt_ids))
        return await self._backend.reserve_sequence_ids(self._run_id, rollout_attempt_ids)

    @query_method(LightningStore.query_spans, Span)
    async def query_spans(self, rollout_id: str, attempt_id: str | None, query: Query) -> PaginatedResult[Span]:
        self._check_open()
        record = await self._records.get(rollout_id)
        if attempt_id == "latest" and record.latest is None:
            return make_page([], query, 0)
        own = None if attempt_id is None else record.attempt(attempt_id).attempt_id
        spans, total = await self._backend.find_spans(self._run_id, rollout_id, own, query)
        return make_page(spans, query, total)


def _has_ended(records: Mapping[tuple[str, str], RolloutRecord], span: Span) -> bool:
    record = records[span.rollout_id, span.attempt_id]
    return lifecycle.has_ended(record, record.attempt(span.attempt_id))


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

    @query_method(LightningStore.query_resources, ResourcesUpdate)
    async def query_resources(self, query: Query) -> PaginatedResult[ResourcesUpdate]:
        self._check_open()
        found, total = select(await self._documents.all("resources", ResourcesUpdate), query)
        return make_page(found, query, total)


def _without_addresses(bundle: NamedResources) -> NamedResources:
    """Leave out where proxies are: a run that goes on makes the same request, and its proxy has another port."""
    return {
        name: resource.model_copy(update={"endpoint": ""}) if isinstance(resource, ProxyLLM) else resource
        for name, resource in bundle.items()
    }


class WorkerPart(StorePart):
    """Workers, and the saved state of algorithms."""

    async def update_worker(
        self,
        worker_id: str,
        heartbeat_stats: Mapping[str, Any] | Unset = UNSET,
        *,
        attempts: Sequence[tuple[str, str]] | Unset = UNSET,
        request_id: str | None = None,
    ) -> Worker:
        check_str("worker_id", worker_id)
        named_attempts = None if isinstance(attempts, Unset) else as_pairs("attempts", attempts)
        alive = None if named_attempts is None else {attempt_id for _, attempt_id in named_attempts}
        await self._look(
            gives_sign=lambda attempt: attempt.worker_id == worker_id if alive is None else attempt.attempt_id in alive
        )
        given = Worker(worker_id=worker_id, **validate_fields(Worker, heartbeat_stats=heartbeat_stats))
        fields = given.model_dump(include={"heartbeat_stats"}, exclude_unset=True)
        request = make_request_of(request_id, "update_worker", fields, named_attempts)
        return copy_worker(await self._records.heartbeat(worker_id, fields, named_attempts, request=request))

    async def get_worker_by_id(self, worker_id: str) -> Worker | None:
        await self._look()
        return await self._documents.get("workers", worker_id, Worker)

    @query_method(LightningStore.query_workers, Worker)
    async def query_workers(self, query: Query) -> PaginatedResult[Worker]:
        await self._look()
        found, total = select(await self._documents.all("workers", Worker), query)
        return make_page(found, query, total)

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
