"""The OpenTelemetry tracer: hundreds of traces at once in one process, each with its own spans."""

import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    ExitStack,
    asynccontextmanager,
    contextmanager,
    nullcontext,
)
from contextvars import ContextVar, copy_context
from typing import TYPE_CHECKING, Any, ClassVar, cast

from opentelemetry import trace as otel
from opentelemetry.context import Context, attach, create_key, detach, get_current, get_value, set_value
from opentelemetry.instrumentation.utils import suppress_instrumentation

from lightning_core.emitter import SpanRecordingContext
from lightning_core.emitter.attributes import flatten_attributes
from lightning_core.emitter.emission import (
    OK,
    LocalRecording,
    exception_attributes,
    failure_text,
    failures_recorded,
    record_locally,
    with_active_sink,
)
from lightning_core.errors import NoActiveTracer, TracerError
from lightning_core.tracer.base import Tracer
from lightning_core.tracer.export import export_from_environment, nanoseconds
from lightning_core.tracer.instrumentors import (
    GENAI,
    start_carrying_context,
    start_instrumenting,
    stop_carrying_context,
    stop_instrumenting,
    unrecorded_clients,
)
from lightning_core.tracer.provider import RecordingProvider, become_global_provider, with_provider
from lightning_core.tracer.trace import Trace, delivering, with_current_trace
from lightning_core.types import Span, SpanCoreFields, TraceStatus
from lightning_core.types.span import recordable_attributes

if TYPE_CHECKING:
    from lightning_core.store.base import LightningStore


CANCELLED_SECONDS = 1.0
"""How long a trace that was cancelled waits for the store: an interrupted run should end within 2 s."""

EXPORT_SECONDS = 1.0
"""How long the last `teardown` of a tracer waits for the OTLP endpoint."""

_last_traces: ContextVar[Mapping[str, Trace]] = ContextVar("lightning_last_traces", default={})  # noqa: B039  # never changed
"""By the tracer's key, the trace that a context entered last."""


class OtelTracer(Tracer):
    """Records OpenTelemetry spans with a provider of its own.

    Spans count that come from `provider` and start inside of a trace of this tracer, in its tasks and threads
    (see `lightning_core.tracer.instrumentors` for how far that goes). Where the application has set no global provider,
    those of `opentelemetry.trace.get_tracer` count as well; a provider that is there is left alone, and its spans are
    its own. A trace begins without a parent: whatever span is current around it is not part of it. Nothing is sampled
    away or cut short, whatever the environment says.

    Between `init` and `teardown` it turns on the OpenTelemetry instrumentors of model clients that are installed, and
    asks them to record messages (see `lightning_core.tracer.instrumentors`). When the environment has an OTLP endpoint,
    recorded spans go there too (see `lightning_core.tracer.export`).

    Args:
        store_timeout_seconds: How long leaving a trace waits for the store.
        instrument: Which instrumentors to turn on, by the names of their entry points. `genai` stands for all those
            of model clients and agent frameworks, `("genai", "requests")` adds one, and `()` turns none on.

    Raises:
        TypeError: When `instrument` is a single string.
    """

    tracer_name: ClassVar = "otel"
    """What the resource of its spans calls it."""

    def __init__(
        self,
        *,
        store_timeout_seconds: float = 30.0,
        instrument: Sequence[str] = (GENAI,),
    ) -> None:
        super().__init__()
        if isinstance(instrument, str):
            raise TypeError(f"instrument is a list of names, got the string {instrument!r}; put it into a list")
        self._instrument = tuple(instrument)
        self._store_timeout_seconds = store_timeout_seconds
        self._key = create_key("lightning-trace")
        self._users = 0
        self._undo = ExitStack()
        """Undoes what `init` did."""
        self._provider: RecordingProvider | None = None
        self._otel_tracer: otel.Tracer | None = None

    @property
    def provider(self) -> RecordingProvider:
        """The provider whose spans are recorded: give it to instrumentors, or take a tracer from it.

        Raises:
            TracerError: Before `init` and after `teardown`.
        """
        if self._provider is None:
            raise TracerError("this OtelTracer is not initialised; call init(), or use `with tracer.lifespan():`")
        return self._provider

    def init(self) -> None:
        """Make the provider, and carry the context into threads from now on. Each call needs one of `teardown`.

        Raises:
            TracerError: When the environment has switched the OpenTelemetry SDK off, or an instrumentor that was asked
                for by its name is not installed or does not work.
        """
        if self._users == 0:
            with ExitStack() as undo:
                self._turn_on(undo)
                self._undo = undo.pop_all()
        self._users += 1

    def teardown(self) -> None:
        """Undo one `init`; the last one shuts the provider down. Does nothing without an `init`."""
        if self._users == 0:
            return
        self._users -= 1
        if self._users == 0:
            self._provider = self._otel_tracer = None
            self._undo.close()

    def _turn_on(self, undo: ExitStack) -> None:
        """Do what the first `init` does; the last `teardown` closes `undo`. A subclass has its own part around it."""
        export = export_from_environment()
        if export is not None:
            undo.callback(export.close, EXPORT_SECONDS)
        provider = RecordingProvider(self._key, export)
        undo.callback(provider.shutdown)
        otel_tracer = provider.get_tracer("lightning_core")
        if isinstance(otel_tracer, otel.NoOpTracer):
            raise TracerError("OTEL_SDK_DISABLED is set, so no span would be recorded; unset it")
        become_global_provider()
        undo.callback(stop_instrumenting, start_instrumenting(self._instrument))
        start_carrying_context()
        undo.callback(stop_carrying_context)
        self._provider, self._otel_tracer = provider, otel_tracer

    @asynccontextmanager
    async def trace_context(
        self,
        name: str | None = None,
        *,
        store: "LightningStore | None" = None,
        rollout_id: str | None = None,
        attempt_id: str | None = None,
    ) -> AsyncIterator[Trace]:
        """See `Tracer.trace_context`. A trace inside of another one takes the spans until it is left."""
        if self._provider is None:
            raise TracerError("this OtelTracer is not initialised; call init() before a trace")
        if (rollout_id is None) != (attempt_id is None):
            raise ValueError(
                f"rollout_id and attempt_id go together, got {rollout_id!r} and {attempt_id!r}; give both or neither"
            )
        store = store or self.store
        run_id = getattr(store, "run_id", None) if rollout_id is not None else None
        resource = self._provider.resource_of(rollout_id, attempt_id, self.tracer_name)
        trace = Trace(name, rollout_id=rollout_id, attempt_id=attempt_id, run_id=run_id, resource=resource)
        trace.otel_tracer = self._otel_tracer
        async with self._delivery(trace, store):
            with self._entered(trace, self._provider), self._open(trace):
                yield trace

    def _open(self, trace: Trace) -> AbstractContextManager[Any]:
        """Return what a subclass has around the block of a trace."""
        return nullcontext()

    def unrecorded_clients(self) -> Mapping[str, str]:
        """See `Tracer.unrecorded_clients`. Empty for a tracer that was not asked for all instrumentors."""
        return unrecorded_clients() if GENAI in self._instrument else {}

    def get_last_trace(self) -> list[Span]:
        """Return the spans of the trace that the calling context entered last, left or not; none without one."""
        trace = _last_traces.get().get(self._key) or cast("Trace | None", get_value(self._key))
        return trace.spans if trace is not None else []

    def create_span(
        self,
        name: str,
        attributes: Mapping[str, Any] | None = None,
        timestamp: float | None = None,
        status: TraceStatus | None = None,
    ) -> SpanCoreFields:
        """See `Tracer.create_span`. The current span becomes its parent. Dropped and counted in a closed trace."""
        trace = self._trace_of(name)
        moment = time.time_ns() if timestamp is None else nanoseconds(timestamp)
        status = status or OK
        plain = recordable_attributes(attributes)
        seconds = moment / 1_000_000_000
        made = SpanCoreFields(name=name, attributes=plain, start_time=seconds, end_time=seconds, status=status)
        if self._otel_tracer is None:  # a thread or a task that outlived the tracer
            trace.drop(name)
            return made
        span = self._otel_tracer.start_span(name, attributes=plain, start_time=moment)
        span.set_status(otel_status(status))
        span.end(moment)
        return made

    @contextmanager
    def operation_context(
        self,
        name: str,
        attributes: Mapping[str, Any] | None = None,
        start_time: float | None = None,
        end_time: float | None = None,
    ) -> Iterator[SpanRecordingContext]:
        """See `Tracer.operation_context`. The span is OpenTelemetry's current one in the block."""
        trace = self._trace_of(name)
        if self._otel_tracer is None:
            trace.drop(name)
            with record_locally(name, attributes, start_time, end_time) as local:
                yield local
            return
        flat = flatten_attributes(attributes or {})
        began = time.time() if start_time is None else start_time
        span = self._otel_tracer.start_span(name, attributes=flat, start_time=nanoseconds(began))
        recording = OtelRecording(span, name, flat, began)
        with otel.use_span(span, record_exception=False, set_status_on_exception=False):
            try:
                with failures_recorded(recording):
                    yield recording
            finally:
                recording.end(end_time)

    def _trace_of(self, span_name: str) -> Trace:
        trace = cast("Trace | None", get_value(self._key))
        if trace is None:
            raise NoActiveTracer(
                f"span {span_name!r} was created outside of a trace of this tracer; enter `async with trace_context()` "
                "first (a thread that was started before does not know the trace)"
            )
        return trace

    def _delivery(self, trace: Trace, store: "LightningStore | None") -> AbstractAsyncContextManager[None]:
        if trace.attempt_id is None:
            return nullcontext()
        if store is None:
            raise ValueError(
                f"the spans of attempt {trace.attempt_id!r} have no store to go to; "
                "pass store=, or give one to init_worker()"
            )
        context = copy_context()
        context.run(attach, _QUIET)
        return delivering(
            trace,
            store,
            context=context,
            timeout_seconds=self._store_timeout_seconds,
            cancelled_timeout_seconds=CANCELLED_SECONDS,
        )

    @contextmanager
    def _entered(self, trace: Trace, provider: RecordingProvider) -> Iterator[None]:
        _last_traces.set({**_last_traces.get(), self._key: trace})
        # No span is current at first: one of another trace would be a parent that the store never sees.
        context = with_active_sink(self, otel.set_span_in_context(otel.INVALID_SPAN))
        context = with_provider(provider, with_current_trace(trace, context))
        token = attach(set_value(self._key, trace, context))
        try:
            yield
        finally:
            trace.close()
            detach(token)


def _make_quiet_context() -> Context:
    token = attach(Context())
    try:
        with suppress_instrumentation():
            return get_current()
    finally:
        detach(token)


_QUIET = _make_quiet_context()
"""The context in which the store is called: no trace, no parent, and instrumentors are asked to look away."""


class OtelRecording(LocalRecording):
    """Records on a span, and keeps what was recorded.

    Args:
        span: The span; it has its first attributes.
        name: Its name.
        attributes: Its first attributes.
        start_time: When it began, in seconds since the epoch.
    """

    def __init__(self, span: otel.Span, name: str, attributes: Mapping[str, Any], start_time: float) -> None:
        super().__init__(name, attributes, start_time)
        self._span = span

    def record_exception(self, exception: BaseException) -> None:
        """See `SpanRecordingContext`; the exception becomes an event of the span."""
        self._span.add_event("exception", exception_attributes(exception))
        self.record_status("ERROR", failure_text(exception))

    def end(self, end_time: float | None = None) -> None:
        """End the span, in seconds since the epoch; None for now."""
        super().end(end_time)
        ended = self.get_recorded_span()
        # OpenTelemetry takes an OK as the last word; here the last word counts.
        self._span.set_status(otel_status(ended.status))
        self._span.end(None if ended.end_time is None else nanoseconds(ended.end_time))

    def _add(self, attributes: Mapping[str, Any]) -> None:
        super()._add(attributes)
        self._span.set_attributes(attributes)


def otel_status(status: TraceStatus) -> otel.Status:
    """Convert a status of ours."""
    code = otel.StatusCode[status.status_code]
    # OpenTelemetry has descriptions for errors only.
    return otel.Status(code, status.description if code is otel.StatusCode.ERROR else None)
