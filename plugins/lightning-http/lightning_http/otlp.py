"""OpenTelemetry's protocol (OTLP/HTTP): from its requests to spans, and its answers.

https://opentelemetry.io/docs/specs/otlp/#otlphttp
"""

import base64
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from google.protobuf import json_format  # type: ignore[import-untyped]
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTracePartialSuccess,
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from lightning_core.semconv import LightningResourceAttributes
from lightning_core.types import Event, Link, OtelResource, Span, SpanContext, TraceStatus
from lightning_core.types.span import MAX_SEQUENCE_ID
from lightning_http.wire import from_any_json

PROTOBUF = "application/x-protobuf"
JSON = "application/json"

_ROLLOUT_ID = LightningResourceAttributes.ROLLOUT_ID.value
_ATTEMPT_ID = LightningResourceAttributes.ATTEMPT_ID.value
_SEQUENCE_ID = LightningResourceAttributes.SPAN_SEQUENCE_ID.value

_STATUSES = tuple(TraceStatus(status_code=code) for code in ("UNSET", "OK", "ERROR"))


class MalformedTraces(ValueError):
    """The body is not an OTLP request."""


@dataclass
class Received:
    """What a request holds."""

    spans: list[Span] = field(default_factory=list)
    """Those that say where they belong; a `sequence_id` of 0 asks the store to number them."""
    rejected: Counter[str] = field(default_factory=Counter)
    """Why spans are not kept -> how many."""


def parse(body: bytes, media_type: str) -> ExportTraceServiceRequest:
    """Read a request.

    Raises:
        MalformedTraces: When it is not such a request.
    """
    request = ExportTraceServiceRequest()
    try:
        if media_type == PROTOBUF:
            request.ParseFromString(body)
        else:
            fields = from_any_json(body)
            if not isinstance(fields, dict):
                raise MalformedTraces(f"a request is an object; got a {type(fields).__name__}")
            json_format.ParseDict(_with_base64_ids(fields), request, ignore_unknown_fields=True)
    except (DecodeError, json_format.ParseError, ValueError, TypeError, AttributeError, RecursionError) as exc:
        raise MalformedTraces(f"the body is not an OTLP request in {media_type}: {exc}") from exc
    return request


def spans_of(
    request: ExportTraceServiceRequest, *, rollout_id: str | None = None, attempt_id: str | None = None
) -> Received:
    """Convert the spans of a request.

    Which attempt a span belongs to is said by the attributes `agentlightning.rollout_id` and
    `agentlightning.attempt_id` of the span, or else of its resource; its number by `agentlightning.span_sequence_id`.

    Args:
        request: The request.
        rollout_id: Where spans belong that do not say it.
        attempt_id: The same.
    """
    received = Received()
    for group in request.resource_spans:
        attributes = _attributes(group.resource.attributes)
        resource = OtelResource(attributes=attributes, schema_url=group.schema_url)
        for scope in group.scope_spans:
            for span in scope.spans:
                span_attributes = _attributes(span.attributes)
                place: tuple[Any, Any, Any] = (
                    span_attributes.get(_ROLLOUT_ID, attributes.get(_ROLLOUT_ID, rollout_id)),
                    span_attributes.get(_ATTEMPT_ID, attributes.get(_ATTEMPT_ID, attempt_id)),
                    _number(span_attributes.get(_SEQUENCE_ID, attributes.get(_SEQUENCE_ID, 0))),
                )
                problem = _problem(span, *place)
                if problem is None:
                    received.spans.append(_span(span, span_attributes, resource, *place))
                else:
                    received.rejected[problem] += 1
    return received


def answer(rejected: Mapping[str, int], media_type: str) -> bytes:
    """Return the body of the answer: empty where all spans are kept, else how many are not, and why."""
    response = ExportTraceServiceResponse()
    if rejected:
        response.partial_success.rejected_spans = sum(rejected.values())
        response.partial_success.error_message = "; ".join(f"{count} × {why}" for why, count in rejected.items())
    if media_type == PROTOBUF:
        return bytes(response.SerializeToString())
    return str(json_format.MessageToJson(response, indent=None)).encode()


def failure(message: str, media_type: str) -> bytes:
    """Return the body of an answer that is an error: a `google.rpc.Status` with this message."""
    if media_type != PROTOBUF:
        return json.dumps({"message": message}).encode()
    return bytes(ExportTracePartialSuccess(error_message=message).SerializeToString())  # has it in the same field


def _problem(span: Any, rollout_id: Any, attempt_id: Any, sequence_id: int | None) -> str | None:
    if not isinstance(rollout_id, str) or not isinstance(attempt_id, str) or not rollout_id or not attempt_id:
        return f"{_ROLLOUT_ID} and {_ATTEMPT_ID} have to be attributes of the span or of its resource"
    if len(span.trace_id) != 16 or len(span.span_id) != 8:
        return "trace_id has to have 16 bytes and span_id 8"
    if sequence_id is None:
        return f"{_SEQUENCE_ID} has to be a number from 1 to {MAX_SEQUENCE_ID}"
    return None


def _number(value: Any) -> int | None:
    """Read a sequence id, which may be a text; 0 asks for one."""
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if 0 <= number <= MAX_SEQUENCE_ID else None


def _span(
    span: Any, attributes: dict[str, Any], resource: OtelResource, rollout_id: str, attempt_id: str, sequence_id: int
) -> Span:
    trace_id, span_id = span.trace_id.hex(), span.span_id.hex()
    parent_id = span.parent_span_id.hex() if span.parent_span_id else None
    status = span.status
    # Every value here is what its field takes: protobuf has checked the types.
    return Span.model_construct(
        rollout_id=rollout_id,
        attempt_id=attempt_id,
        sequence_id=sequence_id,
        trace_id=trace_id,
        span_id=span_id,
        parent_id=parent_id,
        name=span.name,
        status=_status(status.code, status.message),
        attributes=attributes,
        events=[
            Event(name=item.name, attributes=_attributes(item.attributes), timestamp=_seconds(item.time_unix_nano))
            for item in span.events
        ],
        links=[
            Link(
                context=_context(item.trace_id.hex(), item.span_id.hex(), item.trace_state),
                attributes=_attributes(item.attributes),
            )
            for item in span.links
        ],
        start_time=_seconds(span.start_time_unix_nano),
        end_time=_seconds(span.end_time_unix_nano),
        context=_context(trace_id, span_id, span.trace_state),
        parent=None if parent_id is None else _context(trace_id, parent_id),
        resource=resource,
    )


def _status(code: int, message: str) -> TraceStatus:
    plain = _STATUSES[code] if 0 <= code < len(_STATUSES) else _STATUSES[0]
    return TraceStatus(status_code=plain.status_code, description=message) if message else plain


def _context(trace_id: str, span_id: str, trace_state: str = "") -> SpanContext:
    if not trace_state:
        return SpanContext(trace_id=trace_id, span_id=span_id)
    state = dict(entry.strip().partition("=")[::2] for entry in trace_state.split(",") if "=" in entry)
    return SpanContext(trace_id=trace_id, span_id=span_id, trace_state=state)


def _seconds(nanoseconds: int) -> float | None:
    return nanoseconds / 1_000_000_000 if nanoseconds else None


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind is None:
        return None
    if kind == "array_value":
        return [_value(item) for item in value.array_value.values]
    if kind == "kvlist_value":
        return _attributes(value.kvlist_value.values)
    if kind == "bytes_value":
        return base64.b64encode(value.bytes_value).decode("ascii")
    return getattr(value, kind)


# In OTLP's JSON ids are hexadecimal, whereas protobuf's own JSON has bytes in base64.


_IDS = frozenset({"traceId", "spanId", "parentSpanId", "trace_id", "span_id", "parent_span_id"})


def _with_base64_ids(value: Any) -> Any:
    if isinstance(value, list):
        return [_with_base64_ids(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {name: _recoded(name, item) if name in _IDS else _with_base64_ids(item) for name, item in value.items()}


def _recoded(name: str, value: Any) -> Any:
    if not isinstance(value, str):
        return value  # protobuf says what is wrong
    try:
        return base64.b64encode(bytes.fromhex(value)).decode("ascii")
    except ValueError as exc:
        raise MalformedTraces(f"{name} is {value!r}; an id is hexadecimal") from exc
