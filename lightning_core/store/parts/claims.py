"""Claims: whoever executes a rollout begins an attempt of it."""

from collections.abc import Mapping, Sequence
from typing import Any

from lightning_core.store.copies import copy_attempted
from lightning_core.store.parts.arguments import make_request, named, patience, whole
from lightning_core.store.parts.base import StorePart
from lightning_core.store.records import check_began, own_attempt
from lightning_core.store.requests import make_request_of
from lightning_core.types import AttemptedRollout, RolloutConfig, RolloutMode, TaskInput


class ClaimPart(StorePart):
    """The queue, and what goes past it."""

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
        named("worker_id", worker_id)
        self._check_open()
        wanted = make_request(input, mode, resources_id, config, metadata)
        await self._check_resources({resources_id})
        beginning = await self._records.beginning("start", worker_id, request_id=request_id)
        request = make_request_of(request_id, "start_rollout", input, mode)
        [record] = await self._records.insert([wanted], request, begin=beginning.begin)
        check_began(beginning, record)
        await self._records.assign(beginning, [record])
        return copy_attempted(record, own_attempt(record, "start", request_id))

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
        named("worker_id", worker_id)
        wait_seconds = patience("wait_seconds", wait_seconds)
        self._check_open()
        if whole("limit", limit) < 1:
            if request_id is not None:
                return await self._claim(0, worker_id, self._clock.now(), request_id) or []
            await self._run_end.check()
            return []
        asked_at = self._clock.now()
        claimed = await self._claim(limit, worker_id, asked_at, request_id)
        if not claimed and worker_id is not None:
            await self._records.nothing_claimed(worker_id, asked_at=asked_at, request_id=request_id)
        if claimed is not None or wait_seconds == 0:
            return claimed or []
        until = None if wait_seconds is None else self._clock.monotonic() + wait_seconds
        unanswered = False
        ticket = self._waits.for_work()
        try:
            while True:
                claimed = await self._claim(limit, worker_id, asked_at, request_id)
                unanswered = False
                seconds = None if until is None else until - self._clock.monotonic()
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
        named("worker_id", worker_id)
        await self._look()
        beginning = await self._records.beginning("start", worker_id, request_id=request_id)
        record = await self._records.change(rollout_id, beginning.begin)
        check_began(beginning, record)
        await self._records.assign(beginning, [record])
        return copy_attempted(record, own_attempt(record, "start", request_id))

    async def _claim(
        self, limit: int, worker_id: str | None, asked_at: float, request_id: str | None
    ) -> list[AttemptedRollout] | None:
        await self._run_end.check()
        await self._look()
        claimed = await self._records.claim(limit, worker_id, asked_at=asked_at, request_id=request_id)
        if claimed is None:
            return None
        return [copy_attempted(record, own_attempt(record, "claim", request_id)) for record in claimed]
