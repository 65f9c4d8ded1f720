"""Spans: from OpenTelemetry, by hand, and what an attribute may be."""

from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from opentelemetry import trace as otel
from opentelemetry.sdk.resources import Resource as SdkResource
from opentelemetry.sdk.trace import Event as SdkEvent, ReadableSpan
from pydantic import ValidationError

from lightning_core.types import Event, Link, OtelResource, Span, SpanContext, SpanCoreFields, TraceStatus
from lightning_core.types.frozen import freeze

CONTEXT = otel.SpanContext(
    trace_id=0xA1,
    span_id=0xB2,
    is_remote=False,
    trace_flags=otel.TraceFlags(1),
    trace_state=otel.TraceState([("vendor", "x")]),
)
PARENT = otel.SpanContext(trace_id=0xA1, span_id=0xC3, is_remote=True)
ELSEWHERE = otel.SpanContext(trace_id=0xFF, span_id=0xEE, is_remote=True)


def finished(**fields: Any) -> ReadableSpan:
    return ReadableSpan(**{"name": "call", "context": CONTEXT, "resource": SdkResource({}), **fields})


def converted(**fields: Any) -> Span:
    return Span.from_opentelemetry(finished(**fields), "ro-1", "at-1", 3)


def test_everything_of_an_opentelemetry_span_is_converted() -> None:
    span = converted(
        parent=PARENT,
        resource=SdkResource({"service.name": "agent"}, schema_url="https://schema"),
        attributes={"gen_ai.system": "x", "n": 2},
        events=[SdkEvent("token", {"index": 1}, timestamp=1_500_000_000)],
        links=[otel.Link(ELSEWHERE, {"why": "retry"})],
        status=otel.Status(otel.StatusCode.ERROR, "it broke"),
        start_time=1_000_000_000,
        end_time=2_250_000_000,
    )
    assert (span.rollout_id, span.attempt_id, span.sequence_id) == ("ro-1", "at-1", 3)
    assert (span.trace_id, span.span_id, span.parent_id) == (f"{0xA1:032x}", f"{0xB2:016x}", f"{0xC3:016x}")
    assert (span.name, span.attributes) == ("call", {"gen_ai.system": "x", "n": 2})
    assert span.status == TraceStatus(status_code="ERROR", description="it broke")
    assert span.events == [Event(name="token", attributes={"index": 1}, timestamp=1.5)]
    elsewhere = SpanContext(trace_id=f"{0xFF:032x}", span_id=f"{0xEE:016x}", is_remote=True)
    assert span.links == [Link(context=elsewhere, attributes={"why": "retry"})]
    assert (span.start_time, span.end_time) == (1.0, 2.25)
    assert span.context == SpanContext(trace_id=span.trace_id, span_id=span.span_id, trace_state={"vendor": "x"})
    assert span.parent == SpanContext(trace_id=span.trace_id, span_id=f"{0xC3:016x}", is_remote=True)
    assert span.resource == OtelResource(attributes={"service.name": "agent"}, schema_url="https://schema")


def test_a_bare_opentelemetry_span_is_converted_too() -> None:
    span = converted()
    assert (span.parent_id, span.parent, span.start_time, span.end_time) == (None, None, None, None)
    assert (span.attributes, span.events, span.links) == ({}, [], [])
    assert span.status == TraceStatus(status_code="UNSET")
    without_identity = converted(context=None)
    assert (without_identity.trace_id, without_identity.span_id) == ("0" * 32, "0" * 16)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        (b"\x00\xff", "AP8="),
        (("a", None), ("a", None)),
        ((b"\x00", "x"), ["AA==", "x"]),
        ([True, 2, 2.5], [True, 2, 2.5]),
        ([1, 2**70, -3], [1, 2**70, -3]),
        ([1, True, 2.0, None, "a"], [1, True, 2.0, None, "a"]),
        ({"a": {"b": [None, b"x"]}, 1: "one"}, {"a": {"b": [None, "eA=="]}, "1": "one"}),
        ([[1], ({"a": (1, 2)},)], [[1], [{"a": (1, 2)}]]),
    ],
    ids=str,
)
def test_attributes_of_every_kind_become_plain_values(value: Any, expected: Any) -> None:
    span = converted(
        attributes={"a": value}, events=[SdkEvent("e", {"a": value}, 0)], links=[otel.Link(PARENT, {"a": value})]
    )
    assert span.attributes == {"a": expected}
    assert span.events[0].attributes == span.links[0].attributes == freeze({"a": expected})


@pytest.mark.parametrize("value", [object(), {1, 2}, 1j], ids=lambda value: type(value).__name__)
def test_an_attribute_of_another_kind_is_refused_by_name(value: Any) -> None:
    with pytest.raises(ValidationError, match=f"attribute 'bad': a span attribute cannot be a {type(value).__name__}"):
        Span.from_attributes(attributes={"good": 1, "bad": [value]})


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=60, derandomize=True, database=None, deadline=None)
@given(attributes=st.dictionaries(st.text(), values, max_size=4))
def test_a_span_comes_back_from_json_as_it_was(attributes: dict[str, Any]) -> None:
    span = Span.from_attributes(attributes=attributes, rollout_id="ro-1", attempt_id="at-1", parent_id="c" * 16)
    span.events.append(Event(name="e", attributes=attributes, timestamp=1.5))
    assert Span.model_validate_json(span.model_dump_json()) == span


def test_fields_that_we_do_not_know_are_kept() -> None:
    span = Span.from_attributes(attributes={})
    data = {**span.model_dump(), "kind": "CLIENT"}
    assert Span.model_validate(data).model_dump()["kind"] == "CLIENT"


def test_a_span_made_by_hand_gets_an_identity_of_its_own() -> None:
    one, two = Span.from_attributes(attributes={"a": 1}), Span.from_attributes(attributes={"a": 1})
    assert one.span_id != two.span_id
    assert (len(one.trace_id), len(one.span_id), one.sequence_id) == (32, 16, 0)
    assert one.context == SpanContext(trace_id=one.trace_id, span_id=one.span_id)
    assert one.status.status_code == "OK"
    child = Span.from_attributes(attributes={}, trace_id=one.trace_id, parent_id=one.span_id)
    assert child.parent == SpanContext(trace_id=one.trace_id, span_id=one.span_id)


def test_core_fields_keep_their_times_and_start_now_without_one() -> None:
    core = SpanCoreFields(name="reward", attributes={"a": 1}, start_time=0.0, end_time=2.0)
    span = Span.from_core_fields(core, rollout_id="ro-1", attempt_id="at-1", sequence_id=4)
    assert (span.name, span.attributes, span.start_time, span.end_time) == ("reward", {"a": 1}, 0.0, 2.0)
    assert (span.rollout_id, span.attempt_id, span.sequence_id) == ("ro-1", "at-1", 4)
    started = Span.from_core_fields(SpanCoreFields(name="now", attributes={})).start_time
    assert started is not None
    assert started > 0


def test_a_span_keeps_its_own_copy_of_the_attributes() -> None:
    attributes: dict[str, Any] = {"list": [1], "map": {"a": [2]}}
    span = Span.from_attributes(attributes=attributes)
    attributes["list"].append(2)
    attributes["map"]["a"].append(3)
    assert span.attributes == {"list": [1], "map": {"a": [2]}}


BROKEN, MENDED = "a\ud800", "a\ufffd"


def test_text_that_no_utf8_can_hold_is_replaced_in_whatever_becomes_a_span() -> None:
    attributes = {"text": BROKEN, BROKEN: 1, "list": (BROKEN, 1), "map": {BROKEN: [BROKEN]}}
    mended = {"text": MENDED, MENDED: 1, "list": (MENDED, 1), "map": {MENDED: [MENDED]}}

    of_the_sdk = converted(
        name=BROKEN,
        attributes=attributes,
        events=[SdkEvent(BROKEN, {"text": BROKEN}, 0)],
        links=[otel.Link(PARENT, {"text": BROKEN})],
        status=otel.Status(otel.StatusCode.ERROR, BROKEN),
        resource=SdkResource({"service.name": BROKEN}),
    )
    by_hand = Span.from_attributes(attributes=attributes, name=BROKEN)
    of_fields = Span.from_core_fields(SpanCoreFields(name=BROKEN, attributes=attributes))

    for span in (of_the_sdk, by_hand, of_fields):
        assert (span.name, span.attributes) == (MENDED, mended)
        assert Span.model_validate_json(span.model_dump_json()).name == MENDED
    assert (of_the_sdk.events[0].name, of_the_sdk.events[0].attributes) == (MENDED, {"text": MENDED})
    assert of_the_sdk.links[0].attributes == {"text": MENDED}
    assert of_the_sdk.status.description == MENDED
    assert of_the_sdk.resource.attributes == {"service.name": MENDED}
