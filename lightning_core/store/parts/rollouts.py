"""Rollouts: made, found, changed, waited for."""

from collections.abc import Mapping, Sequence
from typing import Any

from lightning_core import lifecycle
from lightning_core.errors import InvalidRequest
from lightning_core.lifecycle import RolloutRecord
from lightning_core.store.base import UNSET, Unset
from lightning_core.store.copies import copy_rollout
from lightning_core.store.parts.arguments import checked, ids, make_request, make_requests, page, patience, whole
from lightning_core.store.parts.base import StorePart
from lightning_core.store.query import make_query
from lightning_core.store.requests import make_request_of
from lightning_core.types import (
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


class RolloutPart(StorePart):
    """Units of work."""

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
        request = make_request(input, mode, resources_id, config, metadata)
        [rollout] = await self._enqueue([request], request_id)
        return rollout

    async def enqueue_many_rollouts(
        self, rollouts: Sequence[EnqueueRolloutRequest], *, request_id: str | None = None
    ) -> Sequence[Rollout]:
        return await self._enqueue(make_requests(rollouts), request_id)

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
        return page([copy_rollout(record) for record in records], query, total)

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
        checked(Rollout, status=status)
        fields = checked(Rollout, input=input, mode=mode, resources_id=resources_id, config=config, metadata=metadata)

        def change(record: RolloutRecord) -> RolloutRecord:
            if not isinstance(status, Unset):
                record = lifecycle.set_rollout_status(record, self._clock.now(), status)
            return lifecycle.with_fields(record, fields) if fields else record

        request = make_request_of(request_id, "update_rollout", input, mode, resources_id, status, config, metadata)
        return copy_rollout(await self._records.change(rollout_id, change, request=request))

    async def wait_for_rollouts(
        self, *, rollout_ids: Sequence[str], timeout: float | None = None, min_ended: int | None = None
    ) -> Sequence[Rollout]:
        rollout_ids, timeout = ids("rollout_ids", rollout_ids), patience("timeout", timeout)
        different = len(set(rollout_ids))
        enough = different if min_ended is None else whole("min_ended", min_ended)
        if not 0 <= enough <= different:
            raise InvalidRequest(f"min_ended is {min_ended}; it is from 0 to {different}, the number of rollouts")
        self._check_open()
        until = None if timeout is None else self._clock.monotonic() + timeout
        while True:
            ticket = self._waits.for_results(rollout_ids, enough)
            try:
                await self._look()
                records = await self._records.get_many(rollout_ids)
                ended = [record for record in records if record.rollout.status in lifecycle.ENDED]
                seconds = None if until is None else until - self._clock.monotonic()
                if len({record.rollout.rollout_id for record in ended}) >= enough or (
                    seconds is not None and seconds <= 0
                ):
                    return [copy_rollout(record) for record in ended]
                self._waits.have_ended(ticket, [record.rollout.rollout_id for record in ended])
                async with self._watchdogs.on_duty():
                    await self._clock.wait(ticket.future, seconds)
            finally:
                self._waits.leave_results(ticket)

    async def _enqueue(self, requests: list[EnqueueRolloutRequest], request_id: str | None) -> list[Rollout]:
        self._check_open()
        await self._check_resources({request.resources_id for request in requests})
        wanted = [(each.input, each.mode) for each in requests]
        records = await self._records.insert(requests, make_request_of(request_id, "enqueue", wanted))
        return [copy_rollout(record) for record in records]
