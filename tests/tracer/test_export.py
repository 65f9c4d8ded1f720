import asyncio
import importlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from lightning_core.tracer import OtelTracer, export as export_module, otel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.tracer.conftest import Install, RecordingStore

GROUP = "opentelemetry_traces_exporter"


class Collector(SpanExporter):
    """Stands for the exporter and what it sends to."""

    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []
        self.open = threading.Event()
        self.open.set()
        self.entered = threading.Event()
        self.broken = False

    def export(self, spans: "Sequence[ReadableSpan]") -> SpanExportResult:
        self.entered.set()
        self.open.wait(20)
        self.spans += spans
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        self.open.set()


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch, install: "Install") -> Collector:
    collector = Collector()
    install(
        "fake-exporter",
        {GROUP: {"otlp_proto_http": "fake_exporter:make", "otlp_proto_grpc": "fake_exporter:refuse"}},
        fake_exporter="collector = None\n\n\ndef make():\n    return collector\n",
    )
    importlib.import_module("fake_exporter").collector = collector
    hide_what_is_installed(monkeypatch, but="fake-exporter")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    return collector


def hide_what_is_installed(monkeypatch: pytest.MonkeyPatch, but: str = "") -> None:
    real = importlib.metadata.entry_points

    def entry_points(**selection: Any) -> Any:
        return [each for each in real(**selection) if each.dist is not None and each.dist.name == but]

    monkeypatch.setattr(export_module.importlib.metadata, "entry_points", entry_points)


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name.startswith("lightning_core")]


async def test_recorded_spans_are_exported_with_their_place_among_the_rollouts(
    collector: Collector, store: "RecordingStore"
) -> None:
    tracer = OtelTracer(instrument=())

    async def rollout(number: int) -> None:
        async with tracer.trace_context(store=store, rollout_id=f"ro-{number}", attempt_id=f"at-{number}"):
            tracer.create_span(f"span {number}", {"a": number})
            await asyncio.sleep(0)
            with tracer.operation_context("around"):
                tracer.create_span("inside")

    with tracer.lifespan():
        await asyncio.gather(*(rollout(number) for number in range(5)))
        tracer.provider.get_tracer("a library").start_span("outside of a trace").end()
    assert len(collector.spans) == 15
    for number in range(5):
        exported = [
            span for span in collector.spans if span.resource.attributes["agentlightning.rollout_id"] == f"ro-{number}"
        ]
        assert [span.name for span in exported] == [span.name for span in store.attempts[f"at-{number}"]]
        assert {span.resource.attributes["agentlightning.attempt_id"] for span in exported} == {f"at-{number}"}
        assert exported[0].attributes == {"a": number}
        assert exported[1].parent is not None
        assert exported[2].context is not None
        assert exported[1].parent.span_id == exported[2].context.span_id


async def test_collector_that_hangs_costs_the_agent_nothing_and_the_teardown_little(
    collector: Collector, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(otel, "EXPORT_SECONDS", 0.05)
    collector.open.clear()
    tracer = OtelTracer(instrument=())
    with tracer.lifespan():
        async with tracer.trace_context() as trace:
            for _ in range(600):
                tracer.create_span("s")
            assert await asyncio.to_thread(collector.entered.wait, 20)
            tracer.create_span("while it hangs")
    assert len(trace.spans) == 601
    assert messages(caplog) == [
        "lightning.export_incomplete timeout_seconds=0.05; the collector did not take all spans in time, "
        "the store has them"
    ]


async def test_late_spans_are_not_exported(collector: Collector) -> None:
    tracer = OtelTracer(instrument=())
    with tracer.lifespan():
        async with tracer.trace_context() as trace:
            late = tracer.provider.get_tracer("a library").start_span("late")
        late.end()
    assert trace.dropped == 1
    assert collector.spans == []


@pytest.mark.parametrize(
    "environment",
    [{"OTEL_EXPORTER_OTLP_ENDPOINT": " "}, {"OTEL_TRACES_EXPORTER": "none"}, {"OTEL_TRACES_EXPORTER": "console"}],
)
async def test_nothing_is_exported_unless_the_environment_asks_for_it(
    collector: Collector,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    environment: dict[str, str],
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    tracer = OtelTracer(instrument=())
    with tracer.lifespan():
        async with tracer.trace_context():
            tracer.create_span("s")
    assert collector.spans == []
    assert messages(caplog) == []


@pytest.mark.usefixtures("collector")
@pytest.mark.parametrize("protocol", ["carrier pigeon", "grpc", "not installed"])
async def test_exporter_that_cannot_be_used_is_one_warning_that_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, protocol: str
) -> None:
    if protocol == "not installed":
        hide_what_is_installed(monkeypatch)
    else:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", protocol)
    with OtelTracer(instrument=()).lifespan():
        pass
    (warning,) = messages(caplog)
    assert warning.startswith("lightning.export_off protocol=")
    assert "pip install opentelemetry-exporter-otlp-proto-http, or -grpc" in warning


class Receiver(BaseHTTPRequestHandler):
    """Takes OTLP over HTTP."""

    received: "list[bytes]"

    def do_POST(self) -> None:
        self.received.append(self.rfile.read(int(self.headers["content-length"])))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bytes]]:
    Receiver.received = []
    with ThreadingHTTPServer(("127.0.0.1", 0), Receiver) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.server_address[1]}")
        yield Receiver.received
        server.shutdown()
        thread.join(20)


async def test_real_exporter_sends_spans_to_a_real_endpoint(
    receiver: list[bytes], store: "RecordingStore", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(otel, "EXPORT_SECONDS", 10)
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http.trace_exporter")
    requests = importlib.import_module("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
    tracer = OtelTracer(instrument=())
    with tracer.lifespan():
        async with tracer.trace_context(store=store, rollout_id="ro-1", attempt_id="at-1"):
            tracer.create_span("over the wire")
            with tracer.operation_context("cut in half: \ud83d", {"answer": "\ud83d"}) as recording:
                recording.record_exception(ValueError("\ud83d"))
    (body,) = receiver
    (resource_spans,) = requests.ExportTraceServiceRequest.FromString(body).resource_spans
    attributes = {each.key: each.value.string_value for each in resource_spans.resource.attributes}
    assert attributes["agentlightning.rollout_id"] == "ro-1"
    over_the_wire, cut = resource_spans.scope_spans[0].spans
    assert (over_the_wire.name, cut.name) == ("over the wire", "cut in half: \ufffd")
    assert cut.attributes[0].value.string_value == cut.status.message == "\ufffd"
