"""Spans by OpenTelemetry's protocol."""

import gzip
import json

import pytest
from google.protobuf import json_format
from http_fixtures import KEY
from lightning_http import LightningStoreClient
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

PROTOBUF, JSON = "application/x-protobuf", "application/json"
TRACE, SPAN, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", "00f067aa0ba902b7"


def attribute(key, value):
    kind = {str: "stringValue", bool: "boolValue", int: "intValue", float: "doubleValue"}[type(value)]
    return {"key": key, "value": {kind: value}}


def place(rollout):
    return [
        attribute("agentlightning.rollout_id", rollout.rollout_id),
        attribute("agentlightning.attempt_id", rollout.attempt.attempt_id),
    ]


def request_of(*spans, resource=()):
    """Make a request as OTLP's JSON has it."""
    return {
        "resourceSpans": [
            {
                "resource": {"attributes": [attribute("service.name", "agent"), *resource]},
                "scopeSpans": [{"scope": {"name": "test"}, "spans": list(spans)}],
                "schemaUrl": "https://opentelemetry.io/schemas/1.21.0",
            }
        ]
    }


def span(span_id=SPAN, *attributes, **fields):
    return {"traceId": TRACE, "spanId": span_id, "name": "chat", "attributes": list(attributes), **fields}


def in_protobuf(request):
    import base64

    def recoded(value):
        if isinstance(value, dict):
            return {
                key: base64.b64encode(bytes.fromhex(item)).decode()
                if key in ("traceId", "spanId", "parentSpanId")
                else recoded(item)
                for key, item in value.items()
            }
        return [recoded(item) for item in value] if isinstance(value, list) else value

    return json_format.ParseDict(recoded(request), ExportTraceServiceRequest()).SerializeToString()


@pytest.fixture
def export(server, ask):
    async def export(request, kind=JSON, *, packed=False, url=None, headers=None):
        body = json.dumps(request).encode() if kind == JSON else in_protobuf(request)
        sent = {"content-type": kind, **(headers or {})}
        if packed:
            body, sent["content-encoding"] = gzip.compress(body), "gzip"
        status, answer = await ask("POST", f"{url or server.url}/v1/traces", data=body, headers=sent)
        assert status == 200, answer
        if kind == JSON:
            return json_format.ParseDict(answer, ExportTraceServiceResponse())
        return ExportTraceServiceResponse.FromString(answer)

    return export


@pytest.mark.parametrize("kind", [PROTOBUF, JSON])
@pytest.mark.parametrize("packed", [False, True])
async def test_everything_of_a_span_arrives(memory, export, kind, packed):
    rollout = await memory.start_rollout("a")
    sent = span(
        SPAN,
        attribute("gen_ai.system", "openai"),
        attribute("tokens", 12),
        attribute("score", 0.5),
        attribute("flag", True),
        {"key": "list", "value": {"arrayValue": {"values": [{"intValue": 1}, {"stringValue": "x"}]}}},
        {"key": "map", "value": {"kvlistValue": {"values": [attribute("a", "b")]}}},
        {"key": "bytes", "value": {"bytesValue": "AQI="}},
        {"key": "nothing", "value": {}},
        parentSpanId=PARENT,
        traceState="vendor=1,other=2",
        startTimeUnixNano="1500000000",
        endTimeUnixNano="2500000000",
        status={"code": 2, "message": "it broke"},
        events=[{"name": "token", "timeUnixNano": "2000000000", "attributes": [attribute("index", 1)]}],
        links=[{"traceId": TRACE, "spanId": PARENT, "attributes": [attribute("why", "cause")]}],
    )
    answer = await export(request_of(sent, resource=place(rollout)), kind, packed=packed)
    assert answer == ExportTraceServiceResponse()
    (stored,) = await memory.query_spans(rollout.rollout_id)
    assert (stored.trace_id, stored.span_id, stored.parent_id, stored.sequence_id) == (TRACE, SPAN, PARENT, 1)
    assert (stored.name, stored.start_time, stored.end_time) == ("chat", 1.5, 2.5)
    assert (stored.status.status_code, stored.status.description) == ("ERROR", "it broke")
    assert stored.attributes == {
        "gen_ai.system": "openai",
        "tokens": 12,
        "score": 0.5,
        "flag": True,
        "list": [1, "x"],
        "map": {"a": "b"},
        "bytes": "AQI=",
        "nothing": None,
    }
    assert [(event.name, event.timestamp, event.attributes) for event in stored.events] == [
        ("token", 2.0, {"index": 1})
    ]
    assert [(link.context.span_id, link.attributes) for link in stored.links] == [(PARENT, {"why": "cause"})]
    assert stored.context.trace_state == {"vendor": "1", "other": "2"}
    assert (stored.resource.attributes["service.name"], stored.resource.schema_url[:5]) == ("agent", "https")
    assert (await memory.get_rollout_by_id(rollout.rollout_id)).status == "running"


async def test_a_span_says_where_it_belongs_before_its_resource_does(memory, export):
    one, two = await memory.start_rollout("a"), await memory.start_rollout("b")
    numbered = span(SPAN, *place(two), attribute("agentlightning.span_sequence_id", "7"))
    await export(request_of(numbered, span(PARENT), resource=place(one)))
    assert [(item.span_id, item.sequence_id) for item in await memory.query_spans(one.rollout_id)] == [(PARENT, 1)]
    assert [(item.span_id, item.sequence_id) for item in await memory.query_spans(two.rollout_id)] == [(SPAN, 7)]


@pytest.mark.parametrize("kind", [PROTOBUF, JSON])
async def test_what_cannot_be_kept_is_counted_and_the_rest_is_kept(memory, export, kind):
    rollout = await memory.start_rollout("a")
    lost = [attribute("agentlightning.rollout_id", "ro-none"), attribute("agentlightning.attempt_id", "at-none")]
    request = request_of(
        span(SPAN, *place(rollout)),
        span("00000000000000a1", *lost),
        span("00000000000000a2", *lost),
        span("00000000000000a3"),
        span("00000000000000a4", *place(rollout), attribute("agentlightning.span_sequence_id", "first")),
        span("00000000000000a5", *place(rollout), attribute("agentlightning.span_sequence_id", str(2**63 - 1))),
        span("", *place(rollout)),
    )
    answer = await export(request, kind)
    assert answer.partial_success.rejected_spans == 6
    message = answer.partial_success.error_message
    assert "2 × run run-1 has no rollout 'ro-none'" in message
    assert "1 × agentlightning.rollout_id and agentlightning.attempt_id have to be attributes" in message
    assert "2 × agentlightning.span_sequence_id has to be a number" in message
    assert "1 × trace_id has to have 16 bytes" in message
    assert (await memory.query_spans(rollout.rollout_id)).total == 1


async def test_with_the_key_of_an_attempt_spans_need_not_say_where_they_belong(guarded, memory, export):
    async with LightningStoreClient(guarded.url, key=KEY) as client:
        mine, other = await client.start_rollout("a"), await client.start_rollout("b")
        key = client.attempt_key(mine.attempt)
    request = request_of(span(), span(PARENT, *place(other)))
    answer = await export(request, url=guarded.url, headers={"Authorization": f"Bearer {key}"})
    assert answer.partial_success.rejected_spans == 1
    assert f"the key is for attempt {mine.attempt.attempt_id} only" in answer.partial_success.error_message
    assert [item.span_id for item in await memory.query_spans(mine.rollout_id)] == [SPAN]
    assert (await memory.query_spans(other.rollout_id)).total == 0


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"\xff\xff", PROTOBUF),
        (b"{", JSON),
        (b"[]", JSON),
        (b'{"resourceSpans": 5}', JSON),
        (b'{"resourceSpans": [{"scopeSpans": [{"spans": [{"traceId": "xyz"}]}]}]}', JSON),
        (b'{"resourceSpans": [{"scopeSpans": [{"spans": [{"name": 5}]}]}]}', JSON),
        (b"[" * 100_000, JSON),
    ],
)
async def test_a_malformed_request_is_400(server, ask, body, kind):
    status, answer = await ask("POST", f"{server.url}/v1/traces", data=body, headers={"content-type": kind})
    assert status == 400
    assert f"not an OTLP request in {kind}" in (
        answer["message"] if kind == JSON else answer.decode("utf-8", "replace")
    )


async def test_an_empty_request_is_fine_and_another_type_is_not(server, ask):
    url = f"{server.url}/v1/traces"
    assert await ask("POST", url, data=b"", headers={"content-type": PROTOBUF}) == (200, b"")
    assert (await ask("POST", url, data=b"x", headers={"content-type": "text/plain"}))[0] == 415
