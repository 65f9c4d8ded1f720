"""`agl export RUN --to otlp`: what a collector gets."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from click.testing import CliRunner
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from lightning_core.cli import agl
from lightning_core.types import Event, Link, OtelResource, Span, SpanContext


class Collector(BaseHTTPRequestHandler):
    received: list[ExportTraceServiceRequest]
    status = 200

    def do_POST(self) -> None:
        request = ExportTraceServiceRequest()
        request.ParseFromString(self.rfile.read(int(self.headers["Content-Length"])))
        self.received.append(request)
        self.send_response(self.status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def collector() -> Iterator[Any]:
    handler = type("Handler", (Collector,), {"received": []})
    server = HTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    handler.url = f"http://127.0.0.1:{server.server_port}/v1/traces"
    yield handler
    server.shutdown()
    thread.join()
    server.server_close()


def send(collector: Any, *options: str) -> str:
    done = CliRunner().invoke(agl, ["export", "x1", "--to", "otlp", "--endpoint", collector.url, *options])
    assert (done.exit_code == 0) == (collector.status == 200), done.output
    return done.output


def spans_of(collector: Any) -> list[Any]:
    return [
        span
        for request in collector.received
        for group in request.resource_spans
        for scope in group.scope_spans
        for span in scope.spans
    ]


def test_each_rollout_is_one_trace_of_an_agent_with_its_calls_and_rewards(make_run: Any, collector: Any) -> None:
    make_run(("Rain?", "train", "Yes.", {"quality": 0.5, "speed": 1.0}), ("Sun?", "train", "", {}))
    for _ in range(2):
        assert send(collector) == "sent 7 spans of 2 rollouts\n"
    spans = spans_of(collector)
    assert len(spans) == 14
    assert len({(span.trace_id, span.span_id) for span in spans}) == 7  # the second time is the same
    assert len({span.trace_id for span in spans}) == 2
    root, *others = [span for span in spans[:7] if span.trace_id == spans[0].trace_id]
    assert (root.name, root.parent_span_id) == ("invoke_agent forecast", b"")
    assert [span.name for span in others] == ["a span"] * 3
    assert {span.parent_span_id for span in others} == {root.span_id}
    told = {pair.key: pair.value.string_value for pair in root.attributes}
    assert told["gen_ai.operation.name"] == "invoke_agent"
    assert '"content": "Rain?"' in told["gen_ai.input.messages"]
    assert '"content": "Yes."' in told["gen_ai.output.messages"]
    assert [event.name for event in root.events] == ["gen_ai.evaluation.result"] * 2
    assert not [event for span in others for event in span.events]
    [score] = [pair.value.double_value for pair in root.events[0].attributes if pair.key.endswith("score.value")]
    assert score == 0.5
    resource = {
        pair.key: pair.value.string_value for pair in collector.received[0].resource_spans[0].resource.attributes
    }
    assert resource.keys() >= {"agentlightning.rollout_id", "agentlightning.attempt_id"}


def test_a_collector_that_refuses_is_an_error(make_run: Any, collector: Any) -> None:
    make_run(("Rain?", "train", "Yes.", {"quality": 0.5}))
    collector.status = 400
    assert "the collector did not take the spans" in send(collector)


def test_redacting_reaches_all_parts_of_a_span(make_run: Any, collector: Any) -> None:
    form = "sk-abcdefgh12345678abcdefgh"
    said = json.dumps({"api_key": 'plain"hunter', "deep": json.dumps({"secret_key": "plainhunter", "city": "Bern"})})
    span = Span.from_attributes(
        attributes={
            "gen_ai.tool.call.arguments": said,
            "http.request.header.authorization": ["Bearer plainhunter"],
            "request.headers": "{'x-api-key': 'plainhunter'}",
        },
        name=f"tool {form}",
        resource=OtelResource(attributes={"process.command_args": f"--key {form}"}),
        start_time=13.0,
        end_time=14.0,
    )
    span.events = [Event(name=f"event {form}", attributes={"text": form})]
    span.links = [Link(context=SpanContext(trace_id="1" * 32, span_id="1" * 16), attributes={"text": form})]
    make_run((f"use {form}", "train", said, {"quality": 1.0}), more=[span])
    send(collector, "--redact")
    sent = str(collector.received)
    assert form not in sent
    assert "hunter" not in sent
    told = {pair.key: pair.value.string_value for span in spans_of(collector) for pair in span.attributes}
    arguments = json.loads(told["gen_ai.tool.call.arguments"])
    assert (arguments["api_key"], json.loads(arguments["deep"])) == ("***", {"secret_key": "***", "city": "Bern"})


def test_ids_that_are_not_of_opentelemetry_are_sent_as_others(make_run: Any, collector: Any) -> None:
    outer = Span.from_attributes(attributes={}, name="outer", span_id="not-hex", start_time=13.0, end_time=15.0)
    inner = Span.from_attributes(attributes={}, name="inner", parent_id="not-hex", start_time=13.0, end_time=14.0)
    make_run(("Rain?", "train", "Yes.", {"quality": 1.0}), more=[outer, inner])
    send(collector)
    sent = {span.name: span for span in spans_of(collector)}
    assert len(sent["outer"].span_id) == 8
    assert sent["inner"].parent_span_id == sent["outer"].span_id
