"""Spans: kept, numbered, found."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from lightning_core import lifecycle
from lightning_core.errors import InvalidRequest
from lightning_core.lifecycle import RolloutRecord
from lightning_core.reported import as_reported, is_reported
from lightning_core.store.copies import own_spans
from lightning_core.store.parts.arguments import page
from lightning_core.store.parts.base import StorePart
from lightning_core.store.query import make_query
from lightning_core.types import FilterLogic, PaginatedResult, SortOrder, Span
from lightning_core.types.clone import clone
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
        alive = {attempt for attempt, number in zip(attempts, kept, strict=True) if number is not None}
        arrivals = [
            self._records.spans_arrived(record, attempt[1], any_new=attempt in alive)
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
            return page([], query, 0)
        own = None if attempt_id is None else record.attempt(attempt_id).attempt_id
        spans, total = await self._backend.find_spans(self._run_id, rollout_id, own, query)
        return page(spans, query, total)


def _has_ended(records: Mapping[tuple[str, str], RolloutRecord], span: Span) -> bool:
    record = records[span.rollout_id, span.attempt_id]
    return lifecycle.has_ended(record, record.attempt(span.attempt_id))
