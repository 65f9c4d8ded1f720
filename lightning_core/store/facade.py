"""The one implementation of the store's semantics: lifecycle, waits and deadlines, over any backend."""

import asyncio
import json
import secrets
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from typing import Any, cast

from pydantic import TypeAdapter, ValidationError

from lightning_core import lifecycle
from lightning_core.errors import InvalidRequest, InvalidTransition, NotFound, first_fault
from lightning_core.lifecycle import RolloutRecord
from lightning_core.rewards import Arrival, as_reported, is_reported, may_have_reward
from lightning_core.store.backend import StoreBackend
from lightning_core.store.base import (
    OPERATIONS,
    UNSET,
    LightningStore,
    LightningStoreCapabilities,
    LightningStoreStatistics,
    Unset,
)
from lightning_core.store.clock import Clock, SystemClock
from lightning_core.store.copies import copy_value, copy_worker, own_spans, without_content
from lightning_core.store.deadlines import Deadlines, PauseDetector
from lightning_core.store.operations import (
    Calls,
    as_float,
    as_ids,
    as_pairs,
    check_str,
    validate_fields,
)
from lightning_core.store.query import Query, make_page, query_method, select
from lightning_core.store.records import Documents, Records, make_id, make_request_of
from lightning_core.store.rollouts import AttemptPart, ClaimPart, RolloutPart
from lightning_core.store.run_end import RUN_STATE, RunEnd
from lightning_core.store.tracking import MetricsBackend, track
from lightning_core.store.waits import Waits
from lightning_core.types import NamedResources, PaginatedResult, ProxyLLM, ResourcesUpdate, Span, Worker
from lightning_core.types.frozen import clone
from lightning_core.types.span import MAX_SEQUENCE_ID

CLOSE_SECONDS = 5.0
"""How long calls that are under way may keep a store from closing: those of a database that is away take longer."""

_RESOURCES: TypeAdapter[NamedResources] = TypeAdapter(NamedResources)


class StoreFacade(RolloutPart, ClaimPart, AttemptPart):
    """A store over a backend.

    Deadlines are looked at before every operation, and, while a caller waits for something, when they come: there is
    no thread or task of the store's own when no caller waits.

    Args:
        backend: Where records are kept.
        run_id: The run to work for; None makes a new one.
        clock: Where the time comes from; None for the machine's clock.
        lease_seconds: How long a worker that sends heartbeats may be silent before its attempt is taken from it.
        tracker: Where calls are counted and timed, and how rollouts end; None for nowhere. See `tracking.track`.
    """

    def __init__(
        self,
        backend: StoreBackend,
        *,
        run_id: str | None = None,
        clock: Clock | None = None,
        lease_seconds: float = 30.0,
        tracker: MetricsBackend | None = None,
        _root: "StoreFacade | None" = None,
    ) -> None:
        if as_float("lease_seconds", lease_seconds) <= 0:
            raise InvalidRequest(f"lease_seconds is {lease_seconds}; it is more than 0")
        self._backend = backend
        self._run_id = f"run-{secrets.token_hex(8)}" if run_id is None else run_id
        self._clock: Clock = SystemClock() if clock is None else clock
        self._lease_seconds = lease_seconds
        self._opened = self._clock.monotonic()
        self._closed = False
        self._is_backend_open = True
        self._view_of: StoreFacade | None = _root
        self._views: weakref.WeakSet[StoreFacade] = weakref.WeakSet()
        self._views_lock = threading.Lock()
        self._calls = Calls() if _root is None else _root._calls
        self._documents = Documents(backend, self._run_id, self._clock)
        self._records = Records(
            backend, self._run_id, self._clock, self._documents, lease_seconds=lease_seconds, tracker=tracker
        )
        self._waits = Waits()
        self._pauses: PauseDetector = PauseDetector(self._clock, lease_seconds) if _root is None else _root._pauses
        self._deadlines = Deadlines(backend, self._run_id, self._clock, self._records, self._waits, self._pauses)
        self._run_ends: dict[str, RunEnd] = {} if _root is None else _root._run_ends
        """By run; those of a view are its root's."""
        self._run_end = self._share_run_end()
        # Weakly, since it holds the backend: a store that is forgotten is to let go of its database.
        forget = weakref.WeakMethod(self._run_end.forget)
        self._unwatch = backend.watch(self._run_id, partial(self._waits.note, forget=forget))
        self.tracker = tracker
        if tracker is not None:
            track(self, tracker, sorted(OPERATIONS))

    @property
    def run_id(self) -> str:
        return self._run_id

    def find_run_id(self) -> str:
        return self._run_id

    def for_run(self, run_id: str) -> LightningStore:
        self._check_open()
        root = self if self._view_of is None else self._view_of
        view = StoreFacade(
            self._backend,
            run_id=run_id,
            clock=self._clock,
            lease_seconds=self._lease_seconds,
            tracker=self.tracker,
            _root=root,
        )
        # A view that is merely forgotten is never closed.
        weakref.finalize(view, view._unwatch).atexit = False
        with root._views_lock:
            root._views.add(view)
        return view

    async def kept_runs(self) -> Sequence[str]:
        return await self._backend.kept_runs()

    @property
    def backend(self) -> StoreBackend:
        """Where the records are kept."""
        return self._backend

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        return self._backend.capabilities

    @property
    def lease_seconds(self) -> float | None:
        return self._lease_seconds

    def keeping_deadlines(self) -> AbstractAsyncContextManager[None]:
        return self._deadlines.on_duty()

    def watch(self, listener: Callable[[str], None]) -> Callable[[], None] | None:
        self._check_open()
        return self._backend.watch(self._run_id, lambda change: listener(change.rollout_id))

    async def statistics(self) -> LightningStoreStatistics:
        counts = await self._backend.count(self._run_id)
        return {
            "name": self._backend.name,
            "total_rollouts": counts["rollouts"],
            "total_attempts": counts["attempts"],
            "total_spans": counts["spans"],
            "total_resources": counts["resources"],
            "total_workers": counts["workers"],
            "live_rollouts": await self._backend.count_live(self._run_id),
            "uptime": self._clock.monotonic() - self._opened,
        }

    async def aclose(self) -> None:
        self._close_view()
        if self._view_of is not None:
            return
        with self._views_lock:
            views = tuple(self._views)
        for view in views:
            view._close_view()
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._calls.all_ended()
        with self._views_lock:
            is_first, self._is_backend_open = self._is_backend_open, False
        if is_first:
            self._calls.under_way.add(self)  # another caller of this waits for it, too, as long as for the calls
            try:
                await self._backend.aclose()
            finally:
                self._calls.under_way.discard(self)
                self._calls.wake()

    # Spans

    async def add_many_spans(self, spans: Sequence[Span]) -> Sequence[Span]:
        largest = max((span.sequence_id for span in spans), default=0)
        if largest > MAX_SEQUENCE_ID:
            raise InvalidRequest(
                f"sequence_id is {largest}; it is at most {MAX_SEQUENCE_ID}, or 0 to have the store number the span"
            )
        await self._deadlines.look(
            gives_sign=lambda attempt: any(span.attempt_id == attempt.attempt_id for span in spans)
        )
        attempts = [(span.rollout_id, span.attempt_id) for span in spans]
        records = await self._records.of_attempts(dict.fromkeys(attempts))
        spans = [
            as_reported(span, "late") if is_reported(span.attributes) and _has_ended(records, span) else span
            for span in spans
        ]
        try:
            copies = own_spans(spans)
        except ValueError as exc:
            raise InvalidRequest(str(exc)) from exc
        kept = await self._backend.append_spans(self._run_id, copies)
        alive: set[tuple[str, str]] = set()
        rewards: dict[tuple[str, str], list[Arrival]] = {}
        for attempt, span, number in zip(attempts, spans, kept, strict=True):
            is_new = number is not None
            if is_new:
                alive.add(attempt)
            if may_have_reward(span):
                known = span.sequence_id if number is None else number
                rewards.setdefault(attempt, []).append(Arrival(span, known, is_new))
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

    async def get_next_span_sequence_id(self, rollout_id: str, attempt_id: str) -> int:
        return (await self.get_many_span_sequence_ids([(rollout_id, attempt_id)]))[0]

    async def get_many_span_sequence_ids(self, rollout_attempt_ids: Sequence[tuple[str, str]]) -> Sequence[int]:
        await self._records.of_attempts(set(rollout_attempt_ids))
        return await self._backend.reserve_sequence_ids(self._run_id, rollout_attempt_ids)

    @query_method(LightningStore.query_spans, Span)
    async def query_spans(self, rollout_id: str, attempt_id: str | None, query: Query) -> PaginatedResult[Span]:
        record = await self._backend.get(self._run_id, rollout_id)
        resolved_id = None
        if record is not None and attempt_id is not None:
            with suppress(NotFound):
                resolved_id = record.attempt(attempt_id).attempt_id
        if record is None or (attempt_id is not None and resolved_id is None):
            return make_page([], query, 0)
        spans, total = await self._backend.find_spans(self._run_id, rollout_id, resolved_id, query)
        return make_page(spans, query, total)

    # Versions of the resources

    async def add_resources(
        self, resources: NamedResources, *, parent_id: str | None = None, request_id: str | None = None
    ) -> ResourcesUpdate:
        check_str("parent_id", parent_id)
        if parent_id is not None and await self._backend.get_document(self._run_id, "resources", parent_id) is None:
            raise NotFound(f"run {self._run_id} has no resources {parent_id!r}; add them first")
        return await self._write_resources(make_id("rs", self._run_id, request_id), resources, request_id, parent_id)

    async def update_resources(
        self, resources_id: str, resources: NamedResources, *, request_id: str | None = None
    ) -> ResourcesUpdate:
        return await self._write_resources(resources_id, resources, request_id)

    async def _write_resources(
        self, resources_id: str, resources: NamedResources, request_id: str | None, parent_id: str | None = None
    ) -> ResourcesUpdate:
        try:
            bundle = _RESOURCES.validate_python(resources)
        except ValidationError as exc:
            raise InvalidRequest(f"this is not a bundle of resources: {first_fault(exc)}") from None
        now = self._clock.now()

        def change(present: dict[str, Any] | None) -> dict[str, Any]:
            update = ResourcesUpdate(
                resources_id=resources_id,
                create_time=now if present is None else present["create_time"],
                update_time=now,
                version=1 if present is None else present["version"] + 1,
                resources=bundle,
                parent_id=parent_id if present is None else present.get("parent_id"),
            )
            return cast("dict[str, Any]", copy_value(update.model_dump()))

        request = make_request_of(request_id, "update_resources", _without_addresses(bundle))
        value = await self._documents.change("resources", resources_id, change, request=request)
        return ResourcesUpdate.model_validate(copy_value(value))

    async def get_resources_by_id(self, resources_id: str) -> ResourcesUpdate | None:
        return await self._documents.get("resources", resources_id, ResourcesUpdate)

    async def get_latest_resources(self) -> ResourcesUpdate | None:
        latest = await self._backend.latest_key(self._run_id, "resources")
        return None if latest is None else await self._documents.get("resources", latest, ResourcesUpdate)

    @query_method(LightningStore.query_resources, ResourcesUpdate)
    async def query_resources(self, query: Query) -> PaginatedResult[ResourcesUpdate]:
        resources, total = select(await self._documents.all("resources", ResourcesUpdate), query)
        return make_page(resources, query, total)

    # Workers

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
        await self._deadlines.look(
            gives_sign=lambda attempt: attempt.worker_id == worker_id if alive is None else attempt.attempt_id in alive
        )
        if heartbeat_stats is None:
            raise InvalidRequest("heartbeat_stats is None; it is a mapping from names to values, or left out")
        given = Worker(worker_id=worker_id, **validate_fields(Worker, heartbeat_stats=heartbeat_stats))
        fields = given.model_dump(include={"heartbeat_stats"}, exclude_unset=True)
        request = make_request_of(request_id, "update_worker", fields, named_attempts)
        return copy_worker(await self._records.heartbeat(worker_id, fields, named_attempts, request=request))

    async def get_worker_by_id(self, worker_id: str) -> Worker | None:
        await self._deadlines.look()
        return await self._documents.get("workers", worker_id, Worker)

    @query_method(LightningStore.query_workers, Worker)
    async def query_workers(self, query: Query) -> PaginatedResult[Worker]:
        await self._deadlines.look()
        workers, total = select(await self._documents.all("workers", Worker), query)
        return make_page(workers, query, total)

    # Deletion

    async def delete_rollouts(self, rollout_ids: Sequence[str]) -> int:
        return await self._backend.delete_rollouts(self._run_id, await self._ended(rollout_ids, "it is deleted"))

    async def drop_content(self, rollout_ids: Sequence[str]) -> int:
        ended = await self._ended(rollout_ids, "its content is dropped")
        dropped = 0
        for rollout_id in ended:
            spans, _ = await self._backend.find_spans(self._run_id, rollout_id, None, Query())
            bare = [without_content(span) for span in spans]
            if bare != spans:
                await self._backend.replace_spans(self._run_id, own_spans(bare))
                dropped += 1
        return dropped

    async def _ended(self, rollout_ids: Sequence[str], before: str) -> list[str]:
        rollout_ids = as_ids("rollout_ids", rollout_ids)
        await self._deadlines.look()
        ended = []
        records = await self._backend.get_many(self._run_id, rollout_ids)
        for rollout_id, record in zip(rollout_ids, records, strict=True):
            if record is None:
                continue
            if record.rollout.status not in lifecycle.ENDED:
                raise InvalidTransition(f"rollout {rollout_id} is {record.rollout.status!r}; cancel it before {before}")
            ended.append(rollout_id)
        return ended

    async def delete_run(self) -> None:
        await self._backend.delete_run(self._run_id)
        self._run_end.forget()

    # The run

    async def begin_run(self, *, request_id: str | None = None) -> None:
        await self._run_end.begin(request_id=request_id)

    async def end_run(self, *, request_id: str | None = None) -> None:
        await self._run_end.end(request_id=request_id)

    async def save_state(self, name: str, state: Any, *, request_id: str | None = None) -> None:
        if name == RUN_STATE:
            raise InvalidRequest(f"{name!r} says whether the run has ended; call end_run or begin_run")
        try:
            text = json.dumps(state, allow_nan=False)
        except (TypeError, ValueError) as exc:
            raise InvalidRequest(f"the state of {name!r} cannot be saved as JSON: {exc}") from exc
        request = make_request_of(request_id, "save_state", text)
        saved = json.loads(text)
        await self._documents.change("state", name, lambda _: saved, request=request)

    async def load_state(self, name: str) -> Any:
        document = await self._backend.get_document(self._run_id, "state", name)
        return None if document is None else copy_value(document.value)

    def _share_run_end(self) -> RunEnd:
        run_end = RunEnd(self._run_id, self._documents, is_shared=self._backend.is_shared)
        run_end = self._run_ends.setdefault(self._run_id, run_end)
        run_end.tell(self._waits)
        return run_end

    def _close_view(self) -> None:
        if not self._closed:
            self._closed = True
            self._waits.close()
            self._unwatch()


def _has_ended(records: Mapping[tuple[str, str], RolloutRecord], span: Span) -> bool:
    record = records[span.rollout_id, span.attempt_id]
    return lifecycle.has_ended(record, record.attempt(span.attempt_id))


def _without_addresses(bundle: NamedResources) -> NamedResources:
    """Leave out where proxies are: a run that goes on makes the same request, and its proxy has another port."""
    return {
        name: resource.model_copy(update={"endpoint": ""}) if isinstance(resource, ProxyLLM) else resource
        for name, resource in bundle.items()
    }
