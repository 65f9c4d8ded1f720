"""Attempts: found, changed, ended."""

from collections.abc import Mapping
from typing import Any

from lightning_core import lifecycle
from lightning_core.lifecycle import RolloutRecord
from lightning_core.store.base import UNSET, Unset
from lightning_core.store.copies import copy_attempt
from lightning_core.store.parts.arguments import checked, mapping, named, page, real
from lightning_core.store.parts.base import StorePart
from lightning_core.store.query import make_query, select
from lightning_core.store.requests import make_request_of
from lightning_core.types import Attempt, AttemptStatus, PaginatedResult, Rollout, SortOrder


class AttemptPart(StorePart):
    """Executions of rollouts."""

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
        return page([copy_attempt(attempt) for attempt in attempts], query, total)

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
        add_metadata: Mapping[str, Any] | Unset = UNSET,
        request_id: str | None = None,
    ) -> Attempt:
        await self._look(gives_sign=lambda attempt: attempt.attempt_id == attempt_id)
        fields = checked(Attempt, status=status, metadata=metadata)
        fields.pop("status", None)
        added = mapping("add_metadata", add_metadata)
        alive_at = None
        if not isinstance(last_heartbeat_time, Unset):
            alive_at = real("last_heartbeat_time", last_heartbeat_time)
        hand_over = None
        if not isinstance(worker_id, Unset):
            hand_over = await self._records.handing_over(attempt_id, **checked(Attempt, worker_id=worker_id))
        before: str | None = None

        def change(record: RolloutRecord) -> RolloutRecord:
            nonlocal before
            before = record.attempt(attempt_id).worker_id
            if not isinstance(status, Unset):
                record = lifecycle.set_attempt_status(record, self._clock.now(), attempt_id, status)
            if hand_over is not None:
                record = hand_over(record)
            if alive_at is not None:
                record = lifecycle.alive_at(record, self._clock.now(), attempt_id, alive_at)
            if fields:
                record = lifecycle.with_attempt_fields(record, attempt_id, fields)
            if added:
                there = record.attempt(attempt_id).metadata or {}
                record = lifecycle.with_attempt_fields(record, attempt_id, {"metadata": {**there, **added}})
            return record

        request = make_request_of(
            request_id, "update_attempt", attempt_id, status, worker_id, last_heartbeat_time, metadata, add_metadata
        )
        record = await self._records.change(rollout_id, change, request=request, attempt_id=attempt_id)
        known = record.request(request_id)
        attempt = record.attempt(attempt_id if known is None or known.attempt_id is None else known.attempt_id)
        if before is not None and before != attempt.worker_id:
            await self._records.follow(record, attempt, worker_id=before, request=request)
        await self._records.follow(record, attempt, request=request)
        return copy_attempt(attempt)

    async def report_fault(
        self, rollout_id: str, attempt_id: str, reason: str, *, request_id: str | None = None
    ) -> Attempt:
        named("reason", reason)
        await self._look()
        request = make_request_of(request_id, "report_fault", attempt_id, reason)
        record = await self._records.change(
            rollout_id, lambda record: lifecycle.fault(record, self._clock.now(), attempt_id, reason), request=request
        )
        attempt = record.attempt(attempt_id)
        await self._records.follow(record, attempt, request=request)
        return copy_attempt(attempt)

    async def report_dead_workers(self, reason: str) -> int:
        # Without a look at what is due: the time that has passed since their death is nobody's.
        self._check_open()
        query = make_query(
            Rollout,
            conditions={"status_in": ("preparing", "running")},
            sort_by=None,
            sort_order="asc",
            limit=-1,
            offset=0,
        )
        ended = 0
        for found in (await self._backend.find(self._run_id, query))[0]:
            attempt_id = None

            def change(record: RolloutRecord) -> RolloutRecord:
                nonlocal attempt_id
                attempt = record.latest
                if attempt is None or attempt.status not in lifecycle.ACTIVE_ATTEMPT:
                    return record
                attempt_id = attempt.attempt_id
                return lifecycle.fault(record, self._clock.now(), attempt_id, reason)

            record = await self._records.change(found.rollout.rollout_id, change)
            if attempt_id is not None:
                ended += 1
                await self._records.follow(record, record.attempt(attempt_id))
        return ended
