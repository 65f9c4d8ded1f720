"""Rollouts: the queue, claims, and attempts."""

from collections.abc import Mapping, Sequence
from typing import Any

from lightning_core import lifecycle
from lightning_core.errors import InvalidRequest
from lightning_core.lifecycle import RolloutRecord
from lightning_core.rewards import keep_final_reward
from lightning_core.store.base import UNSET, LightningStore, Unset
from lightning_core.store.copies import copy_attempt, copy_attempted, copy_rollout, copy_rollouts
from lightning_core.store.operations import (
    StorePart,
    as_float,
    as_ids,
    as_int,
    as_mapping,
    as_timeout,
    check_str,
    make_request,
    make_requests,
    takes_fields,
    validate_fields,
)
from lightning_core.store.query import Query, make_page, make_query, query_method, select
from lightning_core.store.records import check_began, make_request_of, own_attempt
from lightning_core.types import (
    Attempt,
    AttemptedRollout,
    AttemptStatus,
    EnqueueRolloutRequest,
    PaginatedResult,
    Rollout,
    RolloutStatus,
)


class ClaimPart(StorePart):
    """The queue, and what goes past it."""

    @takes_fields(LightningStore.start_rollout)
    async def start_rollout(
        self, fields: Mapping[str, Any], worker_id: str | None, request_id: str | None
    ) -> AttemptedRollout:
        check_str("worker_id", worker_id)
        wanted = make_request(fields)
        beginning = await self._records.beginning("start", worker_id, request_id=request_id)
        request = make_request_of(request_id, "start_rollout", wanted.input, wanted.mode)
        [record] = await self._records.insert([wanted], request, begin=beginning.begin)
        check_began(beginning, record)
        attempt = own_attempt(record, "start", request_id)
        await self._records.assign(beginning, [(record, attempt)])
        return copy_attempted(record, attempt)

    async def dequeue_rollout(
        self, worker_id: str | None = None, *, wait_seconds: float | None = 0.0, request_id: str | None = None
    ) -> AttemptedRollout | None:
        claimed = await self._dequeue(1, worker_id, wait_seconds, request_id)
        return claimed[0] if claimed else None

    async def dequeue_many_rollouts(
        self,
        *,
        limit: int = 1,
        worker_id: str | None = None,
        wait_seconds: float | None = 0.0,
        request_id: str | None = None,
    ) -> Sequence[AttemptedRollout]:
        return await self._dequeue(as_int("limit", limit), worker_id, wait_seconds, request_id)

    async def _dequeue(
        self, limit: int, worker_id: str | None, wait_seconds: float | None, request_id: str | None
    ) -> Sequence[AttemptedRollout]:
        check_str("worker_id", worker_id)
        wait_seconds = as_timeout("wait_seconds", wait_seconds)
        if limit >= 1:
            claimed = await self._claim_in_time(limit, worker_id, wait_seconds, request_id)
        elif request_id is not None:
            claimed = await self._claim(0, worker_id, self._clock.now(), request_id)
        else:
            await self._run_end.check()
            return []
        if not claimed and request_id is not None:
            await self._records.answer_with_nothing(request_id)
        return claimed or []

    async def _claim_in_time(
        self, limit: int, worker_id: str | None, wait_seconds: float | None, request_id: str | None
    ) -> list[AttemptedRollout] | None:
        asked_at = self._clock.now()
        until = None if wait_seconds is None else self._clock.monotonic() + wait_seconds
        is_first, unanswered = True, False
        ticket = self._waits.for_work()
        try:
            while True:
                claimed = await self._claim(limit, worker_id, asked_at, request_id)
                unanswered = False
                if is_first and not claimed and worker_id is not None:
                    await self._records.nothing_claimed(worker_id, asked_at=asked_at, request_id=request_id)
                is_first = False
                seconds = None if until is None else until - self._clock.monotonic()
                if claimed is not None or (seconds is not None and seconds <= 0):
                    return claimed
                async with self._deadlines.on_duty():
                    await self._clock.wait(ticket.future, seconds)
                if ticket.future.done():
                    ticket, unanswered = self._waits.for_work(), True
        finally:
            self._waits.leave_work(ticket, unanswered=unanswered)

    async def start_attempt(
        self, rollout_id: str, worker_id: str | None = None, *, request_id: str | None = None
    ) -> AttemptedRollout:
        check_str("worker_id", worker_id)
        await self._deadlines.look()
        beginning = await self._records.beginning("start", worker_id, request_id=request_id)
        record = await self._records.change(rollout_id, beginning.begin)
        check_began(beginning, record)
        attempt = own_attempt(record, "start", request_id)
        await self._records.assign(beginning, [(record, attempt)])
        return copy_attempted(record, attempt)

    async def _claim(
        self, limit: int, worker_id: str | None, asked_at: float, request_id: str | None
    ) -> list[AttemptedRollout] | None:
        if self._run_end.is_ended is not False:
            await self._run_end.check()
        await self._deadlines.look()
        claimed = await self._records.claim(limit, worker_id, asked_at=asked_at, request_id=request_id)
        return None if claimed is None else [copy_attempted(record, attempt) for record, attempt in claimed]


class RolloutPart(StorePart):
    """Units of work."""

    @takes_fields(LightningStore.enqueue_rollout)
    async def enqueue_rollout(self, fields: Mapping[str, Any], request_id: str | None) -> Rollout:
        [rollout] = await self._enqueue([make_request(fields)], request_id)
        return rollout

    async def enqueue_many_rollouts(
        self, rollouts: Sequence[EnqueueRolloutRequest], *, request_id: str | None = None
    ) -> Sequence[Rollout]:
        return await self._enqueue(make_requests(rollouts), request_id)

    async def get_rollout_by_id(self, rollout_id: str) -> Rollout | None:
        await self._deadlines.look()
        record = await self._backend.get(self._run_id, rollout_id)
        return None if record is None else copy_rollout(record)

    @query_method(LightningStore.query_rollouts, Rollout)
    async def query_rollouts(self, query: Query) -> PaginatedResult[Rollout]:
        await self._deadlines.look()
        records, total = await self._backend.find(self._run_id, query)
        return make_page(copy_rollouts(records), query, total)

    @takes_fields(LightningStore.update_rollout)
    async def update_rollout(
        self, rollout_id: str, fields: Mapping[str, Any], status: RolloutStatus | Unset, request_id: str | None
    ) -> Rollout:
        await self._deadlines.look()
        validate_fields(Rollout, status=status)
        changed = validate_fields(Rollout, **fields)

        def change(record: RolloutRecord) -> RolloutRecord:
            if not isinstance(status, Unset):
                record = lifecycle.set_rollout_status(record, self._clock.now(), status)
            return lifecycle.with_fields(record, changed) if changed else record

        request = make_request_of(request_id, "update_rollout", status, *fields.values())
        return copy_rollout(await self._records.change(rollout_id, change, request=request))

    async def wait_for_rollouts(
        self, *, rollout_ids: Sequence[str], timeout: float | None = None, min_ended: int | None = None
    ) -> Sequence[Rollout]:
        rollout_ids, timeout = as_ids("rollout_ids", rollout_ids), as_timeout("timeout", timeout)
        different = len(set(rollout_ids))
        enough = different if min_ended is None else as_int("min_ended", min_ended)
        if not 0 <= enough <= different:
            raise InvalidRequest(f"min_ended is {min_ended}; it is from 0 to {different}, the number of rollouts")
        until = None if timeout is None else self._clock.monotonic() + timeout
        while True:
            ticket = self._waits.for_results(rollout_ids, enough)
            try:
                await self._deadlines.look()
                records = await self._backend.get_many(self._run_id, rollout_ids)
                ended = [record for record in records if record and record.rollout.status in lifecycle.ENDED]
                over = {record.rollout.rollout_id for record in ended}
                there = {record.rollout.rollout_id for record in records if record}
                needed = min(enough, len(there)) - len(over)
                seconds = None if until is None else until - self._clock.monotonic()
                if needed <= 0 or (seconds is not None and seconds <= 0):
                    return [copy_rollout(record) for record in ended]
                self._waits.narrow(ticket, there - over, needed)
                async with self._deadlines.on_duty():
                    await self._clock.wait(ticket.future, seconds)
            finally:
                self._waits.leave_results(ticket)

    async def _enqueue(self, requests: list[EnqueueRolloutRequest], request_id: str | None) -> list[Rollout]:
        latest = None
        if any(each.resources_id is None for each in requests):
            latest = await self._backend.latest_key(self._run_id, "resources")
        request = make_request_of(request_id, "enqueue", [(each.input, each.mode) for each in requests])
        records = await self._records.insert(requests, request, resources_id=latest)
        return [copy_rollout(record) for record in records]


class AttemptPart(StorePart):
    """Executions of rollouts."""

    @query_method(LightningStore.query_attempts, Attempt)
    async def query_attempts(self, rollout_id: str, query: Query) -> PaginatedResult[Attempt]:
        await self._deadlines.look()
        record = await self._backend.get(self._run_id, rollout_id)
        attempts, total = select(() if record is None else record.attempts, query)
        return make_page([copy_attempt(attempt) for attempt in attempts], query, total)

    async def get_latest_attempt(self, rollout_id: str) -> Attempt | None:
        await self._deadlines.look()
        record = await self._backend.get(self._run_id, rollout_id)
        return None if record is None or record.latest is None else copy_attempt(record.latest)

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
        await self._deadlines.look(gives_sign=lambda attempt: attempt.attempt_id == attempt_id)
        fields = validate_fields(Attempt, status=status, metadata=metadata)
        fields.pop("status", None)
        added = as_mapping("add_metadata", add_metadata)
        alive_at = None
        if not isinstance(last_heartbeat_time, Unset):
            alive_at = as_float("last_heartbeat_time", last_heartbeat_time)
        hand_over = None
        if not isinstance(worker_id, Unset):
            hand_over = await self._records.handing_over(attempt_id, **validate_fields(Attempt, worker_id=worker_id))
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
            if fields or added:
                there = record.attempt(attempt_id).metadata
                metadata = {**(fields.get("metadata", there) or {}), **added} if added else fields["metadata"]
                metadata = keep_final_reward(metadata, there)
                record = lifecycle.with_attempt_fields(record, attempt_id, {"metadata": metadata})
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
        check_str("reason", reason)
        await self._deadlines.look()
        request = make_request_of(request_id, "report_fault", attempt_id, reason)
        record = await self._records.change(
            rollout_id, lambda record: lifecycle.fault(record, self._clock.now(), attempt_id, reason), request=request
        )
        attempt = record.attempt(attempt_id)
        await self._records.follow(record, attempt, request=request)
        return copy_attempt(attempt)

    async def report_dead_workers(self, reason: str) -> int:
        # Without a look at what is due: the time that has passed since their death does not count.
        query = make_query(Rollout, status_in=("preparing", "running"))
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
