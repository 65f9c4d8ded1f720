"""Reading spans from JSON: by hand what is as it should be, by the model what is not.

Checking a span is most of what a server does with it, so this does what `Span.model_validate` does at a fifth of its
time. Whatever is not plainly right goes to the model, which says what is wrong with it.
"""

from typing import Any

from pydantic import BaseModel, TypeAdapter

from lightning_core.types import OtelResource, Span, SpanContext, TraceStatus
from lightning_core.types.frozen import construct
from lightning_core.types.span import plain_attributes
from lightning_http.wire import from_any_json

_REQUIRED = frozenset(
    {"rollout_id", "attempt_id", "sequence_id", "trace_id", "span_id", "name", "status", "attributes", "resource"}
)
_OPTIONAL: dict[str, Any] = {
    "parent_id": None,
    "events": [],
    "links": [],
    "start_time": None,
    "end_time": None,
    "context": None,
    "parent": None,
}
_FIELDS = _REQUIRED | set(_OPTIONAL)
_ALL = set(_FIELDS)
_PLAIN_STATUSES = {code: TraceStatus.model_validate({"status_code": code}) for code in ("UNSET", "OK", "ERROR")}
_NO_RESOURCE = OtelResource(attributes={})
_SPANS: TypeAdapter[list[Span]] = TypeAdapter(list[Span])


class SpansRequest(BaseModel):
    """Spans of one attempt, or of many."""

    spans: list[Span]


def read_spans(items: Any) -> list[Span]:
    """Make spans of what `from_json` gave.

    Raises:
        ValidationError: As the model has it.
    """
    if type(items) is list and all(type(item) is dict for item in items):
        return [_quickly(item) or Span.model_validate(item) for item in items]
    return _SPANS.validate_python(items)


def read_spans_request(body: bytes) -> SpansRequest:
    """Read a body. Texts in it are mended, as those of a span that is made here.

    Raises:
        ValidationError: As the model has it.
    """
    try:
        request = from_any_json(body)
    except ValueError:
        return SpansRequest.model_validate_json(body)  # the model says where
    try:
        return SpansRequest.model_construct(spans=read_spans(request["spans"]))
    except (ValueError, KeyError, TypeError):
        # Whatever is wrong, the model says where.
        return SpansRequest.model_validate(request)


def read_span(body: bytes) -> Span:
    """Read a body that is one span; see `read_spans_request`.

    Raises:
        ValidationError: As the model has it.
    """
    try:
        item = from_any_json(body)
    except ValueError:
        return Span.model_validate_json(body)
    return Span.model_validate(item)


def _quickly(item: dict[str, Any]) -> Span | None:
    """Return the span, or None when it has to be looked at more closely."""
    if not item.keys() >= _REQUIRED or not item.keys() <= _FIELDS:
        return None
    if not (
        type(item["rollout_id"])
        is type(item["attempt_id"])
        is type(item["trace_id"])
        is type(item["span_id"])
        is type(item["name"])
        is str
    ):
        return None
    if type(item["sequence_id"]) is not int or item["sequence_id"] < 0 or type(item["attributes"]) is not dict:
        return None
    fields: dict[str, Any] = {**_OPTIONAL, **item}
    parent_id, start, end = fields["parent_id"], fields["start_time"], fields["end_time"]
    if not (parent_id is None or type(parent_id) is str):
        return None
    if not (start is None or type(start) is float) or not (end is None or type(end) is float):
        return None
    if fields["events"] != [] or fields["links"] != []:
        return None  # few spans have them
    status, resource = _status(item["status"]), _resource(item["resource"])
    context, parent = _context(fields["context"]), _context(fields["parent"])
    if status is None or resource is None or context is False or parent is False:
        return None
    fields["attributes"] = plain_attributes(item["attributes"])
    fields.update(events=[], links=[], status=status, resource=resource, context=context, parent=parent)
    # A full set is never changed, whatever is assigned later, so all spans can share it.
    return construct(Span, fields, _ALL if len(item) == len(_ALL) else set(item), {})


def _status(item: Any) -> TraceStatus | None:
    if type(item) is not dict or not item.keys() <= {"status_code", "description"}:
        return None
    if item.get("description") is not None:
        return None
    code = item.get("status_code")
    return _PLAIN_STATUSES.get(code) if type(code) is str else None


def _resource(item: Any) -> OtelResource | None:
    if type(item) is not dict or not item.keys() <= {"attributes", "schema_url"}:
        return None
    attributes, schema_url = item.get("attributes", {}), item.get("schema_url", "")
    if type(attributes) is not dict or type(schema_url) is not str:
        return None
    return OtelResource.model_validate(item) if attributes or schema_url else _NO_RESOURCE


def _context(item: Any) -> SpanContext | bool | None:
    """Return the context, None for none, False when it has to be looked at more closely."""
    if item is None:
        return None
    if type(item) is not dict or item.keys() != _CONTEXT_FIELDS or item["trace_state"] != {}:
        return False
    if type(item["trace_id"]) is not str or type(item["span_id"]) is not str or type(item["is_remote"]) is not bool:
        return False
    return construct(SpanContext, {**item, "trace_state": _NO_STATE}, _CONTEXT_SET)


_CONTEXT_FIELDS = frozenset(SpanContext.model_fields)
_CONTEXT_SET = set(_CONTEXT_FIELDS)
_NO_STATE = SpanContext(trace_id="", span_id="").trace_state
