"""A tracer that records nothing."""

import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any

from opentelemetry.context import attach, detach

from lightning_core.emitter import SpanRecordingContext
from lightning_core.emitter.attributes import flatten_attributes
from lightning_core.emitter.emission import with_active_sink
from lightning_core.emitter.recording import OK, record_locally
from lightning_core.tracer.base import Tracer
from lightning_core.tracer.trace import Trace, with_current_trace
from lightning_core.types import Span, SpanCoreFields, TraceStatus

if TYPE_CHECKING:
    from lightning_core.store.base import LightningStore


class DummyTracer(Tracer):
    """Takes whatever is emitted, and forgets it: for tests of code that emits.

    It needs no `init`, and no trace for `create_span` and `operation_context`. Nothing reaches a store.
    """

    @asynccontextmanager
    async def trace_context(
        self,
        name: str | None = None,
        *,
        store: "LightningStore | None" = None,
        rollout_id: str | None = None,
        attempt_id: str | None = None,
    ) -> AsyncIterator[Trace]:
        """Make this tracer the active one in an `async with` block; the trace stays empty, and the store unused."""
        trace = Trace(name, rollout_id=rollout_id, attempt_id=attempt_id)
        token = attach(with_current_trace(trace, with_active_sink(self)))
        try:
            yield trace
        finally:
            trace.close()
            detach(token)

    def get_last_trace(self) -> list[Span]:
        """Return no spans."""
        return []

    def create_span(
        self,
        name: str,
        attributes: Mapping[str, Any] | None = None,
        timestamp: float | None = None,
        status: TraceStatus | None = None,
    ) -> SpanCoreFields:
        """Return the span that another tracer would have recorded."""
        moment = time.time() if timestamp is None else timestamp
        flat = flatten_attributes(attributes or {})
        return SpanCoreFields(name=name, attributes=flat, start_time=moment, end_time=moment, status=status or OK)

    def operation_context(
        self,
        name: str,
        attributes: Mapping[str, Any] | None = None,
        start_time: float | None = None,
        end_time: float | None = None,
    ) -> AbstractContextManager[SpanRecordingContext]:
        """Make a span of a `with` block that is not recorded."""
        return record_locally(name, attributes, start_time, end_time)
