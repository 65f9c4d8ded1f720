"""What tracers of agentlightning 0.3 are made of: they bring the spans of OpenTelemetry to a store."""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry.instrumentation.utils import suppress_instrumentation
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor

from lightning_core.concurrency import EventLoopThread
from lightning_core.store import LightningStore
from lightning_core.tracer.instrumentors import GENAI, start_instrumenting, stop_instrumenting
from lightning_core.types import Span

logger = logging.getLogger(__name__)

STORE_WRITE_TIMEOUT_SECONDS = 10.0


class LightningSpanProcessor(SpanProcessor):
    """Keeps the spans that end, and within `with_context` brings them to a store.

    The end of a span waits until the store has it, for at most `STORE_WRITE_TIMEOUT_SECONDS`. Where the store fails,
    that is logged, and the span is kept here alone. The store is called in an event loop of the processor's own. It
    serves one attempt at a time; `OtelTracer` serves many.

    Args:
        disable_store_submission: Whether spans are kept here alone; may be changed.
    """

    def __init__(self, disable_store_submission: bool = False) -> None:
        self.disable_store_submission = disable_store_submission
        self.store: LightningStore | None = None
        self.rollout_id: str | None = None
        self.attempt_id: str | None = None
        self._spans: list[Span] = []
        self._lock = threading.Lock()
        self._thread: EventLoopThread | None = None

    def __enter__(self) -> "LightningSpanProcessor":
        """Forget the spans so far."""
        self._spans = []
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.store = self.rollout_id = self.attempt_id = None

    @contextmanager
    def with_context(
        self, store: LightningStore, rollout_id: str, attempt_id: str
    ) -> "Iterator[LightningSpanProcessor]":
        """Take the spans that end in a `with` block for those of an attempt, and forget those before."""
        with self:
            self.store, self.rollout_id, self.attempt_id = store, rollout_id, attempt_id
            yield self

    def spans(self) -> list[Span]:
        """Return the spans that have ended since the context began."""
        return self._spans

    def on_end(self, span: ReadableSpan) -> None:
        """Take a finished span. Never raises."""
        if span.context is None or not span.context.trace_flags.sampled:
            return
        if self.store is not None and not self.disable_store_submission:
            try:
                stored = self._submit(self.store, span)
            except Exception as exc:
                logger.error("lightning.span_not_stored span=%r", span.name, exc_info=exc)
            else:
                if stored is not None:
                    self._spans.append(stored)
                return
        ids = (self.rollout_id or "rollout-dummy", self.attempt_id or "attempt-dummy")
        with self._lock:
            self._spans.append(Span.from_opentelemetry(span, *ids, len(self._spans)))

    def shutdown(self) -> None:
        """End the thread. Idempotent."""
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None:
            thread.stop()
            thread.join(STORE_WRITE_TIMEOUT_SECONDS)

    def _submit(self, store: LightningStore, span: ReadableSpan) -> Span | None:
        with self._lock:
            thread = self._thread = self._thread or EventLoopThread("otel-loop")
        with suppress_instrumentation():
            future = thread.submit(store.add_otel_span(str(self.rollout_id), str(self.attempt_id), span))
            # A span can end where the garbage collector runs, which may be in that thread.
            return None if thread.is_here else future.result(STORE_WRITE_TIMEOUT_SECONDS)


_instrumented: list[str] = []


def instrument_all() -> None:
    """Turn on OpenTelemetry's instrumentors of model clients that are installed, as `OtelTracer` does by itself."""
    _instrumented.extend(start_instrumenting((GENAI,)))


def uninstrument_all() -> None:
    """Undo every `instrument_all`."""
    while _instrumented:
        stop_instrumenting([_instrumented.pop()])
