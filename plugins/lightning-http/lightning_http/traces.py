"""Spans from any OpenTelemetry SDK or collector, by its own protocol."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from lightning_core.errors import InvalidRequest, NotFound
from lightning_core.store.base import LightningStore
from lightning_core.types import Span
from lightning_http.auth import Identity
from lightning_http.body import BodyRefused, body_of, media_type_of
from lightning_http.call import Call

_PROTOBUF = {"application/x-protobuf": {"schema": {"type": "string", "format": "binary"}}}

REQUEST: Final[dict[str, Any]] = {
    "requestBody": {
        "description": "An `ExportTraceServiceRequest`, packed with gzip or not.",
        "content": {
            **_PROTOBUF,
            "application/json": {"schema": {"type": "object"}},
        },
    },
}
_MESSAGE = {"type": "object", "properties": {"message": {"type": "string"}}}
ANSWERS: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": "How many spans were not kept, and why.",
        "content": {**_PROTOBUF, "application/json": {"schema": {"type": "object"}}},
    },
    400: {
        "description": "The body is not a request.",
        "content": {**_PROTOBUF, "application/json": {"schema": _MESSAGE}},
    },
}


async def keep_traces(request: Request, call: Call) -> Response:
    """Keep the spans of an export; those that cannot be kept are counted in the answer, as the protocol has it."""
    # Imported with the first spans that come this way: protobuf takes longer to import than the rest of a server.
    from lightning_http import otlp

    media_type = media_type_of(request) or otlp.PROTOBUF
    if media_type not in (otlp.PROTOBUF, otlp.JSON):
        raise BodyRefused(415, f"Content-Type is {media_type!r}; it is {otlp.PROTOBUF!r} or {otlp.JSON!r}")
    try:
        export = otlp.parse(await body_of(request, call.service.limits.max_body_bytes), media_type)
    except otlp.MalformedTraces as exc:
        return Response(otlp.failure(str(exc), media_type), 400, media_type=media_type)
    who = call.identity
    received = otlp.spans_of(export, rollout_id=who.rollout_id, attempt_id=who.attempt_id)
    received.rejected += await _keep(call.store, received.spans, who)
    return Response(otlp.answer(received.rejected, media_type), media_type=media_type)


async def _keep(store: LightningStore, spans: list[Span], who: Identity) -> Counter[str]:
    """Keep the spans that can be kept.

    Returns:
        Why others were not -> how many.
    """
    owned = who.mark([span for span in spans if who.owns(span.rollout_id, span.attempt_id)])
    rejected: Counter[str] = Counter()
    if len(owned) < len(spans):
        rejected[f"the key is for attempt {who.attempt_id} only"] = len(spans) - len(owned)
    if not owned:
        return rejected
    try:
        await store.add_many_spans(owned)
    except (NotFound, InvalidRequest):
        # None of them is kept then, so find out which attempt is at fault.
        for group in _by_attempt(owned):
            try:
                await store.add_many_spans(group)
            except (NotFound, InvalidRequest) as exc:
                rejected[str(exc)] += len(group)
    return rejected


def _by_attempt(spans: Sequence[Span]) -> list[list[Span]]:
    groups: defaultdict[tuple[str, str], list[Span]] = defaultdict(list)
    for span in spans:
        groups[span.rollout_id, span.attempt_id].append(span)
    return list(groups.values())
