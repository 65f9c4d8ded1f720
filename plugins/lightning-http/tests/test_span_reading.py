"""Spans are read from JSON as their model reads them."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from lightning_http import wire
from lightning_http.app import SpansRequest, read_spans
from pydantic import ValidationError
from pydantic_core import from_json

from lightning_core.types import Event, Link, OtelResource, Span, SpanContext, TraceStatus

SPAN = Span.from_attributes(
    attributes={"text": "ä", "none": None, "nested": {"a": [1, 2.5, "x"]}, "flags": [True]},
    rollout_id="ro-1",
    attempt_id="at-1",
    sequence_id=3,
    name="chat",
    parent_id="00f067aa0ba902b7",
    start_time=1.5,
    end_time=2.5,
)
VARIANTS = {
    "plain": {},
    "failed": {"status": TraceStatus(status_code="ERROR", description="it broke")},
    "with a resource": {"resource": OtelResource(attributes={"service.name": "a"}, schema_url="s")},
    "with events": {"events": [Event(name="token", attributes={"i": 1}, timestamp=2.0)]},
    "with links": {"links": [Link(context=SpanContext(trace_id="1", span_id="2"), attributes={})]},
    "with a state": {"context": SpanContext(trace_id="1", span_id="2", trace_state={"a": "b"})},
    "without a context": {"context": None, "parent": None, "parent_id": None, "start_time": None},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_span_comes_back_as_it_was(variant):
    span = SPAN.model_copy(update=VARIANTS[variant])
    (read,) = read_spans(SpansRequest, wire.encode({"spans": [span]})).spans
    assert read == span
    assert read.model_dump(mode="json") == span.model_dump(mode="json")
    assert read.model_fields_set == set(Span.model_fields)


def test_extra_fields_are_kept():
    data = {**from_json(wire.encode(SPAN)), "kind": "client"}
    read = read_spans(Span, wire.encode(data))
    assert read.kind == "client"
    assert from_json(wire.encode(read))["kind"] == "client"


def test_a_span_that_was_read_can_be_changed_without_others():
    one, two = read_spans(SpansRequest, wire.encode({"spans": [SPAN, SPAN]})).spans
    one.attributes["new"] = 1
    one.extra_field = 2
    one.events.append(Event(name="e", attributes={}))
    assert two == SPAN


WRONG: Any = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 5),
    st.floats(allow_nan=False),
    st.text(max_size=3),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.sampled_from(["status_code", "trace_id", "attributes", "x"]), st.text(max_size=2), max_size=2),
)


PLACES = [
    *sorted(Span.model_fields),
    *(f"{holder}.{name}" for holder in ("context", "parent") for name in SpanContext.model_fields),
    *("status.status_code", "status.description", "resource.attributes", "resource.schema_url"),
]


@settings(max_examples=600, derandomize=True, deadline=None)
@given(place=st.sampled_from(PLACES), value=WRONG, drop=st.booleans())
def test_whatever_a_field_is_the_answer_is_the_models(place, value, drop):
    data = from_json(wire.encode(SPAN))
    *way, field = place.split(".")
    holder = data[way[0]] if way else data
    if drop:
        del holder[field]
    else:
        holder[field] = value
    read, refused = outcome(lambda: read_spans(SpansRequest, wire.encode({"spans": [data]})).spans[0])
    expected, faults = outcome(lambda: Span.model_validate(copy.deepcopy(data)))
    assert read == expected
    assert refused == [("spans", 0, *fault) for fault in faults]
    if read is not None:
        assert read.model_fields_set == expected.model_fields_set


def outcome(make: Callable[[], Span]) -> tuple[Span | None, list[Any]]:
    """Return the span, or the places of what is wrong with it."""
    try:
        return make(), []
    except ValidationError as exc:
        return None, [fault["loc"] for fault in exc.errors()]
