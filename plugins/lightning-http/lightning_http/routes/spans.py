"""Spans: written one by one or many at once, numbered, read."""

from collections.abc import Sequence
from typing import Annotated

from fastapi import Query

from lightning_core.types import PaginatedResult, Span
from lightning_http.auth import Role
from lightning_http.messages import (
    PREFIX,
    NextSequenceId,
    NextSequenceIdRequest,
    NextSequenceIdsRequest,
    QuerySpansRequest,
    SequenceIds,
)
from lightning_http.routing import CallOf, Routes
from lightning_http.spans import SpansRequest, read_span, read_spans_request

routes = Routes("spans", PREFIX)


@routes.post("/spans/bulk", role=Role.ATTEMPT, status_code=201, read=read_spans_request)
async def add_spans(call: CallOf, body: SpansRequest) -> SequenceIds:
    """Keep spans; none of them when an attempt is unknown."""
    if call.identity.role is Role.ATTEMPT:
        for span in body.spans:
            call.identity.require_attempt(span.rollout_id, span.attempt_id)
    return SequenceIds(
        sequence_ids=numbers_of(body.spans, await call.store.add_many_spans(call.identity.mark(body.spans)))
    )


def numbers_of(given: Sequence[Span], stored: Sequence[Span]) -> list[int | None]:
    """Return the sequence id under which each span was stored; None for those that were there already."""
    numbers: list[int | None] = []
    rest = iter(stored)
    following = next(rest, None)
    for span in given:
        # Those that were stored are in the order in which they were given.
        if following is not None and _identity(span) == _identity(following):
            numbers.append(following.sequence_id)
            following = next(rest, None)
        else:
            numbers.append(None)
    return numbers


def _identity(span: Span) -> tuple[str, str, str]:
    return span.span_id, span.attempt_id, span.rollout_id


@routes.post("/spans", role=Role.ATTEMPT, status_code=201, read=read_span)
async def add_span(call: CallOf, body: Span) -> Span | None:
    """Keep a span; null when the attempt already has one of this id."""
    call.identity.require_attempt(body.rollout_id, body.attempt_id)
    (span,) = call.identity.mark([body])
    return await call.store.add_span(span)


@routes.post("/spans/next", role=Role.ATTEMPT)
async def get_next_span_sequence_id(call: CallOf, body: NextSequenceIdRequest) -> NextSequenceId:
    """Reserve the next sequence id of an attempt."""
    call.identity.require_attempt(body.rollout_id, body.attempt_id)
    return NextSequenceId(sequence_id=await call.store.get_next_span_sequence_id(body.rollout_id, body.attempt_id))


@routes.post("/spans/next/bulk", role=Role.ATTEMPT)
async def get_many_span_sequence_ids(call: CallOf, body: NextSequenceIdsRequest) -> SequenceIds:
    """Reserve a sequence id for each attempt that is given."""
    for rollout_id, attempt_id in body.attempts:
        call.identity.require_attempt(rollout_id, attempt_id)
    return SequenceIds(sequence_ids=list(await call.store.get_many_span_sequence_ids(body.attempts)))


@routes.get("/spans", role=Role.RUNNER)
async def query_spans(call: CallOf, query: Annotated[QuerySpansRequest, Query()]) -> PaginatedResult[Span]:
    """Find spans of a rollout."""
    fields = query.model_dump()
    limit = fields.pop("limit")
    return call.whole(await call.store.query_spans(**fields, limit=call.page(limit)), limit)


@routes.post("/spans/search", role=Role.RUNNER)
async def search_spans(call: CallOf, body: QuerySpansRequest) -> PaginatedResult[Span]:
    """Find spans of a rollout, with the conditions in the body."""
    found: PaginatedResult[Span] = await query_spans(call, body)
    return found
