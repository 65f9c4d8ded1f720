"""Spans, resources, workers and saved state, by requests."""

import json
import secrets
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

from lightning_core.errors import InvalidRequest
from lightning_core.store.base import UNSET, LightningStore, Unset
from lightning_core.store.parts.arguments import ids, make_requests, patience, whole
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
from lightning_core.types.span import plain_attributes
from lightning_http.messages import MAX_CLAIMED, MAX_ENQUEUED, RolloutRequest
from lightning_http.spans import read_spans
from lightning_http.wire import ATTEMPTS, RESOURCES, WORKERS, checked, rollout_from

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan


T = TypeVar("T")


class Asking(LightningStore):
    """A store whose methods are requests."""

    @abstractmethod
    async def _get(self, path: str) -> Any:
        """Return what is there."""

    @abstractmethod
    async def _get_or_none(self, path: str) -> Any:
        """Return what is there, or None when there is no record of this id."""

    @abstractmethod
    async def _change(self, path: str, body: Any, request_id: str | None, *, method: str = "POST") -> Any:
        """Ask for a change; without a request id, under a new one."""

    @abstractmethod
    async def _search(self, path: str, body: Any) -> Any:
        """Ask by a body for something that may be repeated without an id: mostly what changes nothing."""

    @abstractmethod
    async def _await(
        self, path: str, body: Mapping[str, Any], name: str, seconds: float | None, *, request_id: str | None = None
    ) -> Any:
        """Ask for something that takes its time; the field `name` says how long to wait."""

    @abstractmethod
    async def _find(
        self, path: str, body: Mapping[str, Any], limit: int, offset: int, read: Callable[[Any], list[T]]
    ) -> PaginatedResult[T]:
        """Ask for the result of a query."""

    @abstractmethod
    def _keep_key(self, claimed: Mapping[str, Any]) -> None:
        """Remember the attempt's key that comes with a claimed rollout."""


def quoted(name: str) -> str:
    """Return an id as a part of a path."""
    return quote(name, safe="")


def given(**fields: Any) -> dict[str, Any]:
    """Return the fields that were given."""
    return {name: value for name, value in fields.items() if not isinstance(value, Unset)}


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


class WorkClient(Asking):
    """The methods of a store that are about rollouts and attempts."""

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
        fields = {"input": input, "mode": mode, "resources_id": resources_id, "config": config, "metadata": metadata}
        body = checked(RolloutRequest, {**fields, "worker_id": worker_id})
        return self._claimed(await self._change("/rollouts", body, request_id))

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
        fields = {"input": input, "mode": mode, "resources_id": resources_id, "config": config, "metadata": metadata}
        return (await self.enqueue_many_rollouts([checked(EnqueueRolloutRequest, fields)], request_id=request_id))[0]

    async def enqueue_many_rollouts(
        self, rollouts: Sequence[EnqueueRolloutRequest], *, request_id: str | None = None
    ) -> Sequence[Rollout]:
        requests = make_requests(rollouts)
        enqueued: list[Rollout] = []
        for number, start in enumerate(range(0, max(len(requests), 1), MAX_ENQUEUED)):
            part_id = f"{request_id}/{number}" if request_id and number else request_id
            part = {"rollouts": requests[start : start + MAX_ENQUEUED]}
            data = await self._change("/queues/rollouts/enqueue", part, part_id)
            enqueued += [rollout_from(item) for item in data]
        return enqueued

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
        limit = min(whole("limit", limit), MAX_CLAIMED)
        path, body = "/queues/rollouts/dequeue", {"limit": limit, "worker_id": worker_id}
        wait_seconds = patience("wait_seconds", wait_seconds)
        if limit < 1 or wait_seconds == 0:
            data = await self._change(path, body, request_id)
        else:
            own = request_id or secrets.token_hex(12)
            data = await self._await(path, body, "wait_seconds", wait_seconds, request_id=own)
        return [self._claimed(item) for item in data]

    async def start_attempt(
        self, rollout_id: str, worker_id: str | None = None, *, request_id: str | None = None
    ) -> AttemptedRollout:
        path = f"/rollouts/{quoted(rollout_id)}/attempts"
        return self._claimed(await self._change(path, {"worker_id": worker_id}, request_id))

    def _claimed(self, data: Mapping[str, Any]) -> AttemptedRollout:
        self._keep_key(data)
        return AttemptedRollout.model_validate(data)

    async def get_rollout_by_id(self, rollout_id: str) -> Rollout | None:
        data = await self._get_or_none(f"/rollouts/{quoted(rollout_id)}")
        return None if data is None else rollout_from(data)

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
        body = {
            "status_in": _listed(status if status_in is None else status_in),
            "rollout_id_in": _listed(rollout_ids if rollout_id_in is None else rollout_id_in),
            "rollout_id_contains": rollout_id_contains,
            "mode_in": _listed(mode_in),
            "filter_logic": filter_logic,
            "sort_by": sort_by,
            "sort_order": sort_order,
        }
        return await self._find("/rollouts/search", body, limit, offset, _rollouts)

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
        fields = given(
            input=input, mode=mode, resources_id=resources_id, status=status, config=config, metadata=metadata
        )
        return rollout_from(await self._change(f"/rollouts/{quoted(rollout_id)}", fields, request_id))

    async def wait_for_rollouts(
        self, *, rollout_ids: Sequence[str], timeout: float | None = None, min_ended: int | None = None
    ) -> Sequence[Rollout]:
        body = {"rollout_ids": ids("rollout_ids", rollout_ids), "min_ended": min_ended}
        return _rollouts(await self._await("/waits/rollouts", body, "timeout", patience("timeout", timeout)))

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
        path = f"/rollouts/{quoted(rollout_id)}/attempts/search"
        body = {"sort_by": sort_by, "sort_order": sort_order}
        return await self._find(path, body, limit, offset, ATTEMPTS.validate_python)

    async def get_latest_attempt(self, rollout_id: str) -> Attempt | None:
        data = await self._get(f"/rollouts/{quoted(rollout_id)}/attempts/latest")
        return None if data is None else Attempt.model_validate(data)

    async def update_attempt(
        self,
        rollout_id: str,
        attempt_id: str,
        status: AttemptStatus | Unset = UNSET,
        worker_id: str | Unset = UNSET,
        last_heartbeat_time: float | Unset = UNSET,
        metadata: Mapping[str, Any] | Unset | None = UNSET,
        *,
        add_metadata: Mapping[str, Any] | Unset = UNSET,
        request_id: str | None = None,
    ) -> Attempt:
        fields = given(
            status=status,
            worker_id=worker_id,
            last_heartbeat_time=last_heartbeat_time,
            metadata=metadata,
            add_metadata=add_metadata,
        )
        path = f"/rollouts/{quoted(rollout_id)}/attempts/{quoted(attempt_id)}"
        return Attempt.model_validate(await self._change(path, fields, request_id))

    async def report_fault(
        self, rollout_id: str, attempt_id: str, reason: str, *, request_id: str | None = None
    ) -> Attempt:
        path = f"/rollouts/{quoted(rollout_id)}/attempts/{quoted(attempt_id)}/fault"
        return Attempt.model_validate(await self._change(path, {"reason": reason}, request_id))

    # Deletion

    async def delete_rollouts(self, rollout_ids: Sequence[str]) -> int:
        deleted = await self._search("/rollouts/delete", {"rollout_ids": ids("rollout_ids", rollout_ids)})
        return int(deleted["deleted"])


def _rollouts(data: Sequence[Any]) -> list[Rollout]:
    return [rollout_from(item) for item in data]


def _listed(values: Sequence[str] | None) -> Any:
    """Return a sequence as JSON has it; what is none goes to the store, which says so."""
    if values is None or isinstance(values, str):
        return values
    try:
        return list(values)
    except TypeError as exc:
        raise InvalidRequest(f"{values!r} is no sequence of values") from exc
