"""The one implementation of the store's semantics: lifecycle, waits and deadlines, over any backend."""

import json
import secrets
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

from pydantic import BaseModel, TypeAdapter, ValidationError

from lightning_core import lifecycle
from lightning_core.errors import InvalidRequest, InvalidTransition, NotFound, StoreClosed
from lightning_core.lifecycle import RolloutRecord
from lightning_core.store.backend import StoreBackend
from lightning_core.store.base import (
    UNSET,
    LightningStore,
    LightningStoreCapabilities,
    LightningStoreStatistics,
    Unset,
)
from lightning_core.store.clock import Clock, SystemClock
from lightning_core.store.copies import copy_attempt, copy_rollout, copy_span, copy_value, numbered
from lightning_core.store.documents import Documents
from lightning_core.store.query import Query, make_query, select
from lightning_core.store.records import Records, make_id, own_attempt
from lightning_core.store.waits import Waits
from lightning_core.store.watchdog import Watchdogs
from lightning_core.types import (
    Attempt,
    AttemptedRollout,
    AttemptStatus,
    EnqueueRolloutRequest,
    FilterLogic,
    NamedResources,
    PaginatedResult,
    ResourcesUpdate,
    Rollout,
    RolloutConfig,
    RolloutMode,
    RolloutStatus,
    SortOrder,
    Span,
    TaskInput,
    Worker,
    WorkerStatus,
)

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

T = TypeVar("T")

_RESOURCES: TypeAdapter[NamedResources] = TypeAdapter(NamedResources)


class StoreFacade(LightningStore):
    """A store over a backend.

    Deadlines are looked at before every operation, and, while anybody waits for something, when they come: there is
    no thread or task of the store's own when nobody waits.

    Args:
        backend: Where records are kept.
        run_id: The run to work for; None makes a new one.
        clock: Where the time comes from; None for the machine's clock.
        lease_seconds: How long a worker that sends heartbeats may be silent before its attempt is taken from it.
    """

    def __init__(
        self,
        backend: StoreBackend,
        *,
        run_id: str | None = None,
        clock: Clock | None = None,
        lease_seconds: float = 30.0,
    ) -> None:
        if lease_seconds <= 0:
            raise InvalidRequest(f"lease_seconds is {lease_seconds}; it is more than 0")
        self._backend = backend
        self._run_id = f"run-{secrets.token_hex(8)}" if run_id is None else run_id
        self._clock: Clock = SystemClock() if clock is None else clock
        self._lease_seconds = lease_seconds
        self._opened = self._clock.now()
        self._closed = False
        self._root = self
        self._views: weakref.WeakSet[StoreFacade] = weakref.WeakSet()
        self._views_lock = threading.Lock()
        self._documents = Documents(backend, self._run_id)
        self._records = Records(backend, self._run_id, self._clock, self._documents, lease_seconds=lease_seconds)
        self._waits = Waits()
        self._watchdogs = Watchdogs(backend, self._run_id, self._clock, self._waits, self._look)
        self._unwatch = backend.watch(self._run_id, self._waits.note)

    @property
    def run_id(self) -> str:
        return self._run_id

    def for_run(self, run_id: str) -> LightningStore:
        self._check_open()
        view = StoreFacade(self._backend, run_id=run_id, clock=self._clock, lease_seconds=self._lease_seconds)
        view._root = self._root
        # Nobody closes a view that is merely forgotten.
        weakref.finalize(view, view._unwatch).atexit = False
        with self._root._views_lock:
            self._root._views.add(view)
        return view

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        return self._backend.capabilities

    async def statistics(self) -> LightningStoreStatistics:
        self._check_open()
        counts = await self._backend.count(self._run_id)
        return {
            "name": self._backend.name,
            "total_rollouts": counts["rollouts"],
            "total_attempts": counts["attempts"],
            "total_spans": counts["spans"],
            "total_resources": counts["resources"],
            "total_workers": counts["workers"],
            "uptime": self._clock.now() - self._opened,
        }

    async def aclose(self) -> None:
        if self._closed:
            return
        self._close_view()
        if self._root is self:
            with self._views_lock:
                views = tuple(self._views)
            for view in views:
                view._close_view()
            await self._backend.aclose()

    # Rollouts

    async def start_rollout(
        self,
        input: TaskInput,
        mode: RolloutMode | None = None,
        resources_id: str | None = None,
        config: RolloutConfig | None = None,
        metadata: Mapping[str, Any] | None = None,
        worker_id: str | None = None,
        *,
        request_id: str | None = None,
    ) -> AttemptedRollout:
        self._check_open()
        request = _request(input, mode, resources_id, config, metadata)
        await self._check_resources({resources_id})
        begin = await self._records.beginning(worker_id, request_id=request_id)
        [new] = self._records.new([request], request_id=request_id)
        [record] = await self._backend.insert([begin(new)])
        await self._records.assign(record, request_id=request_id)
        return _attempted(record, request_id)

    async def enqueue_rollout(
        self,
        input: TaskInput,
        mode: RolloutMode | None = None,
        resources_id: str | None = None,
        config: RolloutConfig | None = None,
        metadata: Mapping[str, Any] | None = None,
        *,
        request_id: str | None = None,
    ) -> Rollout:
        request = _request(input, mode, resources_id, config, metadata)
        return (await self.enqueue_many_rollouts([request], request_id=request_id))[0]

    async def enqueue_many_rollouts(
        self, rollouts: Sequence[EnqueueRolloutRequest], *, request_id: str | None = None
    ) -> Sequence[Rollout]:
        self._check_open()
        await self._check_resources({request.resources_id for request in rollouts})
        records = await self._backend.insert(self._records.new(rollouts, request_id=request_id))
        return [copy_rollout(record) for record in records]

    async def dequeue_rollout(
        self, worker_id: str | None = None, *, wait_seconds: float | None = 0.0, request_id: str | None = None
    ) -> AttemptedRollout | None:
        claimed = await self.dequeue_many_rollouts(
            limit=1, worker_id=worker_id, wait_seconds=wait_seconds, request_id=request_id
        )
        return claimed[0] if claimed else None

    async def dequeue_many_rollouts(
        self,
        *,
        limit: int = 1,
        worker_id: str | None = None,
        wait_seconds: float | None = 0.0,
        request_id: str | None = None,
    ) -> Sequence[AttemptedRollout]:
        self._check_open()
        if limit < 1:
            return []
        if worker_id is not None:
            now = self._clock.now()
            await self._records.change_worker(
                worker_id, lambda worker: worker.model_copy(update={"last_dequeue_time": now})
            )
        claimed = await self._claim(limit, worker_id, request_id)
        if claimed is not None or wait_seconds == 0:
            return claimed or []
        until = None if wait_seconds is None else self._clock.now() + wait_seconds
        unanswered = False
        ticket = self._waits.for_work()
        try:
            while True:
                claimed = await self._claim(limit, worker_id, request_id)
                unanswered = False
                seconds = None if until is None else until - self._clock.now()
                if claimed is not None or (seconds is not None and seconds <= 0):
                    return claimed or []
                async with self._watchdogs.on_duty():
                    await self._clock.wait(ticket.future, seconds)
                if ticket.future.done():
                    ticket, unanswered = self._waits.for_work(), True
        finally:
            self._waits.leave_work(ticket, unanswered=unanswered)

    async def start_attempt(
        self, rollout_id: str, worker_id: str | None = None, *, request_id: str | None = None
    ) -> AttemptedRollout:
        await self._look()
        begin = await self._records.beginning(worker_id, request_id=request_id)
        record = await self._records.change(rollout_id, begin, request_id=request_id)
        await self._records.assign(record, request_id=request_id)
        return _attempted(record, request_id)

    async def get_rollout_by_id(self, rollout_id: str) -> Rollout | None:
        await self._look()
        record = await self._backend.get(self._run_id, rollout_id)
        return None if record is None else copy_rollout(record)

    async def query_rollouts(
        self,
        *,
        status_in: Sequence[RolloutStatus] | None = None,
        rollout_id_in: Sequence[str] | None = None,
        rollout_id_contains: str | None = None,
        mode_in: Sequence[RolloutMode] | None = None,
        filter_logic: FilterLogic = "and",
        sort_by: str | None = None,
        sort_order: SortOrder = "asc",
        limit: int = -1,
        offset: int = 0,
        status: Sequence[RolloutStatus] | None = None,
        rollout_ids: Sequence[str] | None = None,
    ) -> PaginatedResult[Rollout]:
        query = make_query(
            Rollout,
            conditions={
                "status_in": status if status_in is None else status_in,
                "rollout_id_in": rollout_ids if rollout_id_in is None else rollout_id_in,
                "rollout_id_contains": rollout_id_contains,
                "mode_in": mode_in,
            },
            logic=filter_logic,
            sort_by=sort_by,
            sort_order=sort_order,
            limit=limit,
            offset=offset,
        )
        await self._look()
        records, total = await self._backend.find(self._run_id, query)
        return _page([copy_rollout(record) for record in records], query, total)

    async def update_rollout(
        self,
        rollout_id: str,
        input: TaskInput | Unset = UNSET,
        mode: RolloutMode | Unset | None = UNSET,
        resources_id: str | Unset | None = UNSET,
        status: RolloutStatus | Unset = UNSET,
        config: RolloutConfig | Unset = UNSET,
        metadata: Mapping[str, Any] | Unset | None = UNSET,
        *,
        request_id: str | None = None,
    ) -> Rollout:
        await self._look()
        if isinstance(resources_id, str):
            await self._check_resources({resources_id})
        _checked(Rollout, status=status)
        fields = _checked(Rollout, input=input, mode=mode, resources_id=resources_id, config=config, metadata=metadata)

        def change(record: RolloutRecord) -> RolloutRecord:
            if not isinstance(status, Unset):
                record = lifecycle.set_rollout_status(record, self._clock.now(), status)
            return lifecycle.with_fields(record, fields) if fields else record

        return copy_rollout(await self._records.change(rollout_id, change, request_id=request_id))

    async def wait_for_rollouts(
        self, *, rollout_ids: Sequence[str], timeout: float | None = None, min_ended: int | None = None
    ) -> Sequence[Rollout]:
        different = len(set(rollout_ids))
        enough = different if min_ended is None else min_ended
        if not 0 <= enough <= different:
            raise InvalidRequest(f"min_ended is {min_ended}; it is from 0 to {different}, the number of rollouts")
        self._check_open()
        until = None if timeout is None else self._clock.now() + timeout
        while True:
            ticket = self._waits.for_results(rollout_ids, enough)
            try:
                await self._look()
                records = [await self._records.get(rollout_id) for rollout_id in rollout_ids]
                ended = [record for record in records if record.rollout.status in lifecycle.ENDED]
                seconds = None if until is None else until - self._clock.now()
                if len({record.rollout.rollout_id for record in ended}) >= enough or (
                    seconds is not None and seconds <= 0
                ):
                    return [copy_rollout(record) for record in ended]
                self._waits.have_ended(ticket, [record.rollout.rollout_id for record in ended])
                async with self._watchdogs.on_duty():
                    await self._clock.wait(ticket.future, seconds)
            finally:
                self._waits.leave_results(ticket)

    # Attempts

    async def query_attempts(
        self,
        rollout_id: str,
        *,
        sort_by: str | None = "sequence_id",
        sort_order: SortOrder = "asc",
        limit: int = -1,
        offset: int = 0,
    ) -> PaginatedResult[Attempt]:
        query = make_query(Attempt, conditions={}, sort_by=sort_by, sort_order=sort_order, limit=limit, offset=offset)
        await self._look()
        attempts, total = select((await self._records.get(rollout_id)).attempts, query)
        return _page([copy_attempt(attempt) for attempt in attempts], query, total)

    async def get_latest_attempt(self, rollout_id: str) -> Attempt | None:
        await self._look()
        latest = (await self._records.get(rollout_id)).latest
        return None if latest is None else copy_attempt(latest)

    async def update_attempt(
        self,
        rollout_id: str,
        attempt_id: str,
        status: AttemptStatus | Unset = UNSET,
        worker_id: str | Unset = UNSET,
        last_heartbeat_time: float | Unset = UNSET,
        metadata: Mapping[str, Any] | Unset | None = UNSET,
        *,
        request_id: str | None = None,
    ) -> Attempt:
        await self._look(gives_sign=lambda attempt: attempt.attempt_id == attempt_id)
        _checked(Attempt, status=status)
        fields = _checked(Attempt, worker_id=worker_id, last_heartbeat_time=last_heartbeat_time, metadata=metadata)
        changed = attempt_id

        def change(record: RolloutRecord) -> RolloutRecord:
            nonlocal changed
            changed = record.attempt(attempt_id).attempt_id
            if not isinstance(status, Unset):
                record = lifecycle.set_attempt_status(record, self._clock.now(), changed, status)
            return lifecycle.with_attempt_fields(record, changed, fields) if fields else record

        record = await self._records.change(rollout_id, change, request_id=request_id)
        attempt = record.attempt(changed)
        await self._records.follow(record, attempt, request_id=request_id)
        return copy_attempt(attempt)

    async def report_fault(
        self, rollout_id: str, attempt_id: str, reason: str, *, request_id: str | None = None
    ) -> Attempt:
        await self._look()
        record = await self._records.change(
            rollout_id,
            lambda record: lifecycle.fault(record, self._clock.now(), attempt_id, reason),
            request_id=request_id,
        )
        attempt = record.attempt(attempt_id)
        await self._records.follow(record, attempt, request_id=request_id)
        return copy_attempt(attempt)

    # Spans

    async def add_span(self, span: Span) -> Span | None:
        stored = await self.add_many_spans([span])
        return stored[0] if stored else None

    async def add_many_spans(self, spans: Sequence[Span]) -> Sequence[Span]:
        await self._look(gives_sign=lambda attempt: any(span.attempt_id == attempt.attempt_id for span in spans))
        try:
            own = [copy_span(span) for span in spans]
        except ValueError as exc:
            raise InvalidRequest(str(exc)) from exc
        attempts = dict.fromkeys((span.rollout_id, span.attempt_id) for span in own)
        await self._records.check_attempts(attempts)
        kept = await self._backend.append_spans(self._run_id, own)
        stored = [numbered(span, number) for span, number in zip(spans, kept, strict=True) if number is not None]
        alive = {(span.rollout_id, span.attempt_id) for span in stored}
        for rollout_id, attempt_id in attempts:
            await self._records.spans_arrived(rollout_id, attempt_id, any_new=(rollout_id, attempt_id) in alive)
        return stored

    async def add_otel_span(
        self, rollout_id: str, attempt_id: str, readable_span: "ReadableSpan", sequence_id: int | None = None
    ) -> Span | None:
        return await self.add_span(Span.from_opentelemetry(readable_span, rollout_id, attempt_id, sequence_id or 0))

    async def get_next_span_sequence_id(self, rollout_id: str, attempt_id: str) -> int:
        return (await self.get_many_span_sequence_ids([(rollout_id, attempt_id)]))[0]

    async def get_many_span_sequence_ids(self, rollout_attempt_ids: Sequence[tuple[str, str]]) -> Sequence[int]:
        self._check_open()
        await self._records.check_attempts(set(rollout_attempt_ids))
        return await self._backend.reserve_sequence_ids(self._run_id, rollout_attempt_ids)

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
        query = make_query(
            Span,
            conditions={
                "trace_id": trace_id,
                "trace_id_contains": trace_id_contains,
                "span_id": span_id,
                "span_id_contains": span_id_contains,
                "parent_id": parent_id,
                "parent_id_contains": parent_id_contains,
                "name": name,
                "name_contains": name_contains,
            },
            logic=filter_logic,
            sort_by=sort_by,
            sort_order=sort_order,
            limit=limit,
            offset=offset,
        )
        self._check_open()
        record = await self._records.get(rollout_id)
        if attempt_id == "latest" and record.latest is None:
            return _page([], query, 0)
        own = None if attempt_id is None else record.attempt(attempt_id).attempt_id
        spans, total = await self._backend.find_spans(self._run_id, rollout_id, own, query)
        return _page([copy_span(span) for span in spans], query, total)

    # Resources

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

        def change(present: ResourcesUpdate | None) -> ResourcesUpdate:
            return ResourcesUpdate(
                resources_id=resources_id,
                create_time=now if present is None else present.create_time,
                update_time=now,
                version=1 if present is None else present.version + 1,
                resources=bundle,
            )

        return await self._documents.change("resources", resources_id, ResourcesUpdate, change, request_id=request_id)

    async def get_resources_by_id(self, resources_id: str) -> ResourcesUpdate | None:
        self._check_open()
        return await self._documents.get("resources", resources_id, ResourcesUpdate)

    async def get_latest_resources(self) -> ResourcesUpdate | None:
        self._check_open()
        return await self._documents.get("resources", None, ResourcesUpdate)

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
        return _page(found, query, total)

    # Workers

    async def update_worker(
        self,
        worker_id: str,
        heartbeat_stats: Mapping[str, Any] | Unset = UNSET,
        *,
        request_id: str | None = None,
    ) -> Worker:
        await self._look(gives_sign=lambda attempt: attempt.worker_id == worker_id)
        fields = _checked(Worker, heartbeat_stats=heartbeat_stats)
        return await self._records.heartbeat(worker_id, fields, request_id=request_id)

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
        return _page(found, query, total)

    # The saved state of algorithms

    async def save_state(self, name: str, state: Any, *, request_id: str | None = None) -> None:
        self._check_open()
        try:
            text = json.dumps(state, allow_nan=False)
        except (TypeError, ValueError) as exc:
            raise InvalidRequest(f"the state of {name!r} cannot be saved as JSON: {exc}") from exc
        await self._documents.put("state", name, json.loads(text), request_id=request_id)

    async def load_state(self, name: str) -> Any:
        self._check_open()
        document = await self._backend.get_document(self._run_id, "state", name)
        return None if document is None else document.value

    # Deletion

    async def delete_rollouts(self, rollout_ids: Sequence[str]) -> int:
        await self._look()
        ended = []
        for rollout_id in rollout_ids:
            record = await self._backend.get(self._run_id, rollout_id)
            if record is None:
                continue
            if record.rollout.status not in lifecycle.ENDED:
                raise InvalidTransition(
                    f"rollout {rollout_id} is {record.rollout.status!r}; cancel it before it is deleted"
                )
            ended.append(rollout_id)
        return await self._backend.delete_rollouts(self._run_id, ended)

    async def delete_run(self) -> None:
        self._check_open()
        await self._backend.delete_run(self._run_id)

    # What the above is made of

    def _check_open(self) -> None:
        if self._closed or self._root._closed:
            raise StoreClosed(f"the store of run {self._run_id} is closed")

    def _close_view(self) -> None:
        if not self._closed:
            self._closed = True
            self._waits.close()
            self._unwatch()

    async def _look(self, *, gives_sign: Callable[[Attempt], bool] | None = None) -> None:
        """Check that the store is open, and end what is due, so that the caller sees it as it is now."""
        self._check_open()
        await self._records.expire(gives_sign=gives_sign)

    async def _claim(self, limit: int, worker_id: str | None, request_id: str | None) -> list[AttemptedRollout] | None:
        await self._look()
        claimed = await self._records.claim(limit, worker_id, request_id=request_id)
        return None if claimed is None else [_attempted(record, request_id) for record in claimed]

    async def _check_resources(self, resources_ids: set[str | None]) -> None:
        for resources_id in resources_ids - {None}:
            if await self._backend.get_document(self._run_id, "resources", resources_id) is None:
                raise NotFound(f"run {self._run_id} has no resources {resources_id!r}; add them first")


def _request(
    input: TaskInput,
    mode: RolloutMode | None,
    resources_id: str | None,
    config: RolloutConfig | None,
    metadata: Mapping[str, Any] | None,
) -> EnqueueRolloutRequest:
    try:
        return EnqueueRolloutRequest(
            input=input,
            mode=mode,
            resources_id=resources_id,
            config=config,
            metadata=cast("dict[str, Any] | None", metadata),
        )
    except ValidationError as exc:
        fault = exc.errors()[0]
        raise InvalidRequest(f"{fault['loc'][0]} is {fault['input']!r}: {fault['msg']}") from exc


def _attempted(record: RolloutRecord, request_id: str | None) -> AttemptedRollout:
    """Return the rollout with the attempt that the request began, also when there is a newer one by now."""
    rollout = copy_rollout(record)
    assert isinstance(rollout, AttemptedRollout)
    rollout.attempt = copy_attempt(own_attempt(record, request_id))
    return rollout


def _page(items: Sequence[T], query: Query, total: int) -> PaginatedResult[T]:
    return PaginatedResult.model_construct(items=items, limit=query.limit, offset=query.offset, total=total)


def _checked(model: type[BaseModel], **values: Any) -> dict[str, Any]:
    """Return copies of the values that were given, as the model's fields take them.

    Raises:
        InvalidRequest: Names the value that its field does not take.
    """
    fields = {}
    for name, value in values.items():
        if isinstance(value, Unset):
            continue
        holder = model.model_construct()
        try:
            model.__pydantic_validator__.validate_assignment(holder, name, value)
        except ValidationError as exc:
            raise InvalidRequest(f"{name} is {value!r}: {exc.errors()[0]['msg']}") from exc
        fields[name] = copy_value(getattr(holder, name))
    return fields
