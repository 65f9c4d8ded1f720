"""OpenTelemetry's protocol, as scripts of agentlightning 0.3 use it by hand."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from lightning_core.former import import_plugin
from lightning_core.semconv import LightningResourceAttributes
from lightning_core.tracer.export import readable
from lightning_core.types import Span

ROLLOUT_ID = LightningResourceAttributes.ROLLOUT_ID.value
ATTEMPT_ID = LightningResourceAttributes.ATTEMPT_ID.value
PROTOBUF_CT = "application/x-protobuf"


class LightningStoreOTLPExporter(SpanExporter):
    """Sends spans to the server of a store, as those of an attempt, from `enable_store_otlp` on.

    Args:
        endpoint: Where spans go that belong to no attempt, in a subclass whose `should_bypass` is False.
        options: Those of OpenTelemetry's `OTLPSpanExporter`, such as `headers`.
    """

    def __init__(self, endpoint: str | None = None, **options: Any) -> None:
        self._options = options
        self._default = self.endpoint = endpoint
        self.rollout_id: str | None = None
        self.attempt_id: str | None = None
        self._exporter: OTLPSpanExporter | None = None

    def enable_store_otlp(self, endpoint: str, rollout_id: str, attempt_id: str) -> None:
        """Send what comes now to an attempt's store: `endpoint` is its `otlp_traces_endpoint()`."""
        self.rollout_id, self.attempt_id = rollout_id, attempt_id
        self._send_to(endpoint)

    def disable_store_otlp(self) -> None:
        """Undo `enable_store_otlp`."""
        self.rollout_id = self.attempt_id = None
        self._send_to(self._default)

    def should_bypass(self) -> bool:
        """Whether spans that belong to no attempt are left out."""
        return True

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send spans; see `SpanExporter`."""
        if self.rollout_id is not None:
            ids = {ROLLOUT_ID: self.rollout_id, ATTEMPT_ID: self.attempt_id or ""}
            recorded = [Span.from_opentelemetry(span, "", "", 0) for span in spans]
            spans = [
                readable(each, resource=span.resource.merge(Resource(ids)), like=span)
                for each, span in zip(recorded, spans, strict=True)
            ]
        elif self.should_bypass():
            return SpanExportResult.SUCCESS
        self._exporter = self._exporter or OTLPSpanExporter(endpoint=self.endpoint, **self._options)
        return self._exporter.export(spans)

    def shutdown(self) -> None:
        """Close the connections."""
        self._send_to(self.endpoint)

    def _send_to(self, endpoint: str | None) -> None:
        if self._exporter is not None:
            self._exporter.shutdown()  # type: ignore[no-untyped-call]
        self._exporter = None
        self.endpoint = endpoint


async def spans_from_proto(
    request: Any, sequence_id_bulk_issuer: Callable[[Sequence[tuple[str, str]]], Awaitable[Sequence[int]]]
) -> list[Span]:
    """Return the spans of an `ExportTraceServiceRequest` that say which attempt they belong to.

    Args:
        request: The request.
        sequence_id_bulk_issuer: Numbers those that have no number: a store's `get_many_span_sequence_ids`.
    """
    spans: list[Span] = import_plugin("lightning_http.otlp", "spans_from_proto").spans_of(request).spans
    unnumbered = [span for span in spans if not span.sequence_id]
    numbers = await sequence_id_bulk_issuer([(span.rollout_id, span.attempt_id) for span in unnumbered])
    for span, number in zip(unnumbered, numbers, strict=True):
        span.sequence_id = number
    return spans
