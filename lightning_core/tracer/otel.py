"""The OpenTelemetry tracer: hundreds of traces at once in one process, each with its own spans."""

import os
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, nullcontext
from contextvars import ContextVar, copy_context
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakValueDictionary

from opentelemetry import trace as otel
from opentelemetry.context import Context, attach, create_key, detach, get_current, get_value, set_value
from opentelemetry.instrumentation.utils import suppress_instrumentation
from opentelemetry.sdk.resources import Resource as SdkResource
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, SpanProcessor, TracerProvider, sampling
from opentelemetry.sdk.trace import Span as SdkSpan
from opentelemetry.sdk.trace.id_generator import IdGenerator

from lightning_core.emitter.active import with_active_sink
from lightning_core.errors import NoActiveTracer, TracerError
from lightning_core.tracer.base import Tracer
from lightning_core.tracer.delivery import delivering
from lightning_core.tracer.threads import start_carrying_context, stop_carrying_context
from lightning_core.tracer.trace import Trace
from lightning_core.types import OtelResource, Span, SpanCoreFields, TraceStatus
from lightning_core.types.span import plain_attributes

if TYPE_CHECKING:
    from lightning_core.store.base import LightningStore

_last_traces: ContextVar[Mapping[str, Trace]] = ContextVar("lightning_last_traces", default={})  # noqa: B039  # never changed
"""By the tracer's key, the trace that a context entered last."""


class OtelTracer(Tracer):
    """Records OpenTelemetry spans with a provider of its own; the global provider is neither used nor changed.

    Spans count that come from `provider` and start inside of a trace of this tracer, in its tasks and threads
    (see `lightning_core.tracer.threads` for how far that goes). A trace begins without a parent: whatever span is
    current around it is not part of it. Nothing is sampled away or cut short, whatever the environment says.

    Args:
        store_timeout_seconds: How long leaving a trace waits for the store.
        cancelled_store_timeout_seconds: The same when it was cancelled; an interrupted run should end within 2 s.
    """

    def __init__(self, *, store_timeout_seconds: float = 30.0, cancelled_store_timeout_seconds: float = 1.0) -> None:
        super().__init__()
        self._store_timeout_seconds = store_timeout_seconds
        self._cancelled_store_timeout_seconds = cancelled_store_timeout_seconds
        self._key = create_key("lightning-trace")
        self._users = 0
        self._provider: TracerProvider | None = None
        self._otel_tracer: otel.Tracer | None = None

    @property
    def provider(self) -> TracerProvider:
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
            TracerError: When the environment has switched the OpenTelemetry SDK off.
        """
        if self._users == 0:
            provider = _make_provider(self._key)
            otel_tracer = provider.get_tracer("lightning_core")
            if isinstance(otel_tracer, otel.NoOpTracer):
                raise TracerError("OTEL_SDK_DISABLED is set, so no span would be recorded; unset it")
            start_carrying_context()
            self._provider, self._otel_tracer = provider, otel_tracer
        self._users += 1

    def teardown(self) -> None:
        """Undo one `init`; the last one shuts the provider down. Does nothing without an `init`."""
        if self._users == 0:
            return
        self._users -= 1
        if self._users == 0:
            stop_carrying_context()
            provider, self._provider, self._otel_tracer = self.provider, None, None
            provider.shutdown()

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
        trace = Trace(name, rollout_id=rollout_id, attempt_id=attempt_id)
        async with self._delivery(trace, store or self.store):
            with self._entered(trace):
                yield trace

    def get_last_trace(self) -> list[Span]:
        """Return the spans of the trace that the calling context entered last, left or not; none without one."""
        trace = _last_traces.get().get(self._key) or _trace_in(self._key, get_current())
        return trace.spans if trace is not None else []

    def create_span(
        self,
        name: str,
        attributes: Mapping[str, Any] | None = None,
        timestamp: float | None = None,
        status: TraceStatus | None = None,
    ) -> SpanCoreFields:
        """See `Tracer.create_span`. The current span becomes its parent. Dropped and counted in a closed trace."""
        trace = _trace_in(self._key, get_current())
        if trace is None:
            raise NoActiveTracer(
                f"span {name!r} was created outside of a trace of this tracer; enter `async with trace_context()` "
                "first (a thread that was started before does not know the trace)"
            )
        moment = time.time_ns() if timestamp is None else round(timestamp * 1_000_000_000)
        status = status or TraceStatus(status_code="OK")
        plain = plain_attributes(attributes)
        if self._otel_tracer is None:
            # A thread that outlived its trace, and the tracer too.
            trace.drop(name)
        else:
            span = self._otel_tracer.start_span(name, attributes=plain, start_time=moment)
            span.set_status(_otel_status(status))
            span.end(moment)
        seconds = moment / 1_000_000_000
        return SpanCoreFields(name=name, attributes=plain, start_time=seconds, end_time=seconds, status=status)

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
            cancelled_timeout_seconds=self._cancelled_store_timeout_seconds,
        )

    @contextmanager
    def _entered(self, trace: Trace) -> Iterator[None]:
        _last_traces.set({**_last_traces.get(), self._key: trace})
        # No span is current at first: one of another trace would be a parent that the store never sees.
        context = otel.set_span_in_context(otel.INVALID_SPAN)
        token = attach(set_value(self._key, trace, with_active_sink(self, context)))
        try:
            yield
        finally:
            trace.close()
            detach(token)


class _TraceRecorder(SpanProcessor):
    """Hands each span to the trace in which it started."""

    def __init__(self, key: str) -> None:
        self._key = key
        # The SDK ends a span with a copy of it. A span that is never ended goes when nobody else holds it.
        self._open: WeakValueDictionary[int, SdkSpan] = WeakValueDictionary()
        # The provider's resource, and what it was converted to: all of its spans share it.
        self._resource: tuple[SdkResource, OtelResource] | None = None

    def on_start(self, span: SdkSpan, parent_context: Context | None = None) -> None:
        """Remember on the span which trace it belongs to."""
        trace = self._trace_of(parent_context) if parent_context is not None else None
        trace = trace or self._trace_of(get_current())
        if trace is not None:
            setattr(span, self._key, trace)
            self._open[span.get_span_context().span_id] = span

    def _trace_of(self, context: Context) -> Trace | None:
        # Whoever makes a context by hand often puts nothing but the parent span into it.
        return _trace_in(self._key, context) or getattr(otel.get_current_span(context), self._key, None)

    def on_end(self, span: ReadableSpan) -> None:
        """Record the span; in any thread, and never with an error for the code that ended it."""
        context = span.get_span_context()
        started = self._open.pop(context.span_id, None) if context is not None else None
        if started is None:
            return
        trace: Trace = getattr(started, self._key)
        if trace.closed:
            trace.drop(span.name)
            return
        try:
            recorded = Span.from_opentelemetry(
                span, trace.rollout_id or "", trace.attempt_id or "", 0, resource=self._converted(span.resource)
            )
        except Exception as exc:
            trace.discard(span.name, exc)
        else:
            trace.record(recorded)

    def _converted(self, resource: SdkResource) -> OtelResource:
        if self._resource is None or self._resource[0] is not resource:
            self._resource = (resource, OtelResource.from_opentelemetry(resource))
        return self._resource[1]


class _RandomIds(IdGenerator):
    """Random ids that agents have no part in.

    The SDK's own generator uses `random`, which agents seed: then ids repeat, within one attempt even, and a span
    with an id that the store knows counts as stored.
    """

    def generate_span_id(self) -> int:
        return _random_id(8)

    def generate_trace_id(self) -> int:
        return _random_id(16)

    def is_trace_id_random(self) -> bool:
        return True


def _random_id(size_bytes: int) -> int:
    # 0 is OpenTelemetry's mark of an invalid id.
    return int.from_bytes(os.urandom(size_bytes), "big") or 1


def _make_provider(key: str) -> TracerProvider:
    unlimited = SpanLimits.UNSET
    provider = TracerProvider(
        sampler=sampling.ALWAYS_ON,
        shutdown_on_exit=False,
        id_generator=_RandomIds(),
        span_limits=SpanLimits(
            max_attributes=unlimited,
            max_events=unlimited,
            max_links=unlimited,
            max_span_attributes=unlimited,
            max_event_attributes=unlimited,
            max_link_attributes=unlimited,
            max_attribute_length=unlimited,
            max_span_attribute_length=unlimited,
        ),
    )
    provider.add_span_processor(_TraceRecorder(key))
    return provider


def _trace_in(key: str, context: Context) -> Trace | None:
    return cast("Trace | None", get_value(key, context))


def _otel_status(status: TraceStatus) -> otel.Status:
    code = otel.StatusCode[status.status_code]
    # OpenTelemetry has descriptions for errors only.
    return otel.Status(code, status.description if code is otel.StatusCode.ERROR else None)


def _make_quiet_context() -> Context:
    token = attach(Context())
    try:
        with suppress_instrumentation():
            return get_current()
    finally:
        detach(token)


_QUIET = _make_quiet_context()
"""The context in which the store is called: no trace, no parent, and instrumentors are asked to look away."""
