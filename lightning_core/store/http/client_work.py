"""Rollouts and attempts, by requests."""

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from lightning_core.errors import InvalidRequest
from lightning_core.store.base import UNSET, Unset
from lightning_core.store.http.asking import Asking, given, quoted
from lightning_core.store.http.messages import RolloutRequest
from lightning_core.store.http.protocol import MAX_CLAIMED, MAX_ENQUEUED
from lightning_core.store.http.wire import ATTEMPTS, checked, rollout_from
from lightning_core.store.parts.arguments import ids, make_requests, patience, whole
from lightning_core.types import (
    Attempt,
    AttemptedRollout,
    AttemptStatus,
    EnqueueRolloutRequest,
    FilterLogic,
    PaginatedResult,
    Rollout,
    RolloutConfig,
    RolloutMode,
    RolloutStatus,
    SortOrder,
    TaskInput,
)


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
