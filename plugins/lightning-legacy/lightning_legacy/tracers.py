"""Tracers that were written for agentlightning 0.3: they make spans in their own way, and bring them to the store."""

import functools
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import Any

from opentelemetry.context import attach, detach

from lightning_core.emitter import SpanRecordingContext
from lightning_core.emitter.emission import with_active_sink
from lightning_core.store import LightningStore
from lightning_core.tracer import DummyTracer, Trace, Tracer, with_current_trace
from lightning_core.types import Span, SpanCoreFields


def with_active_tracer_context(
    function: Callable[..., AbstractAsyncContextManager[Any]],
) -> Callable[..., AbstractAsyncContextManager[Any]]:
    """Make the tracer whose `trace_context` this is the active one during the block."""

    @functools.wraps(function)
    @asynccontextmanager
    async def enter(self: Tracer, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        token = attach(with_active_sink(self))
        try:
            async with function(self, *args, **kwargs) as given:
                yield given
        finally:
            detach(token)

    return enter


def _implements(tracer: Tracer, method: str) -> bool:
    return getattr(type(tracer), method) is not getattr(Tracer, method)


class ForeignTrace(Trace):
    """What a tracer recorded that stores its spans itself, and what was emitted that it does not take."""

    def __init__(self, tracer: Tracer, *, rollout_id: str, attempt_id: str) -> None:
        super().__init__(rollout_id, rollout_id=rollout_id, attempt_id=attempt_id)
        self._tracer = tracer
        self._stored: Sequence[Span] = ()

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Take what is emitted in a block."""
        tracer = self._tracer
        is_sink = _implements(tracer, "create_span") and _implements(tracer, "operation_context")
        token = attach(with_current_trace(self, with_active_sink(tracer if is_sink else _Sink(tracer, self))))
        try:
            yield
        finally:
            self.close()
            detach(token)

    @property
    def spans(self) -> list[Span]:
        emitted = super().spans if not self._stored else list(self._stored)
        return [*map(self._converted, self._tracer.get_last_trace()), *emitted]

    async def deliver(self, store: LightningStore) -> None:
        emitted = [span.model_copy(update={"sequence_id": 0}) for span in super().spans]
        if emitted:
            self._stored = await store.add_many_spans(emitted)

    def _converted(self, span: Any) -> Span:
        if isinstance(span, Span):
            return span
        return Span.from_opentelemetry(span, self.rollout_id or "", self.attempt_id or "", 0)


_UNRECORDED = DummyTracer()


class _Sink:
    """Gives what is emitted to a tracer, or to the trace where the tracer has no method for it."""

    def __init__(self, tracer: Tracer, trace: Trace) -> None:
        self._tracer = tracer
        self._trace = trace

    def create_span(self, *args: Any, **options: Any) -> SpanCoreFields:
        if _implements(self._tracer, "create_span"):
            return self._tracer.create_span(*args, **options)
        return self._record(_UNRECORDED.create_span(*args, **options))

    @contextmanager
    def operation_context(self, *args: Any, **options: Any) -> Iterator[SpanRecordingContext]:
        if _implements(self._tracer, "operation_context"):
            with self._tracer.operation_context(*args, **options) as context:
                yield context
            return
        recording: SpanRecordingContext | None = None
        try:
            with _UNRECORDED.operation_context(*args, **options) as recording:
                yield recording
        finally:
            if recording is not None:
                self._record(recording.get_recorded_span())

    def _record(self, fields: SpanCoreFields) -> SpanCoreFields:
        trace = self._trace
        span = Span.from_core_fields(fields, rollout_id=trace.rollout_id or "", attempt_id=trace.attempt_id or "")
        trace.record(span)
        return fields
