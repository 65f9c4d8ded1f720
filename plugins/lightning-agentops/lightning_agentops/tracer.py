"""The tracer `agentops`."""

import threading
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from typing import TYPE_CHECKING

from opentelemetry import trace as otel

from lightning_agentops.library import Instrumentation
from lightning_agentops.service import API_URL, TRACES_URL, Service
from lightning_core.deprecated import deprecated
from lightning_core.errors import ConfigError
from lightning_core.tracer import OtelTracer, Trace
from lightning_core.tracer.exclusive import ProcessClaim, claim_process

if TYPE_CHECKING:
    from lightning_core.store.base import LightningStore
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from opentelemetry.context import Context

from lightning_core.tracer import current_trace
from lightning_core.tracer.provider import RoutingProvider

_FIRST_LOOK = 16


@dataclass(slots=True)
class _Started:
    """The spans of a trace that are open, and some that have ended since it was last looked."""

    spans: list[otel.Span] = field(default_factory=list)
    look_at: int = _FIRST_LOOK
    """When there are so many: each start would otherwise cost as much as there are."""

    def add(self, span: otel.Span) -> None:
        self.spans.append(span)
        if len(self.spans) >= self.look_at:
            self.spans = [each for each in self.spans if each.is_recording()]
            self.look_at = max(_FIRST_LOOK, 2 * len(self.spans))


class AgentOpsProvider(RoutingProvider):
    """Gives each span to the provider of the trace in which it starts, where that is of an AgentOps tracer.

    Another tracer of this process has instrumentation of its own, and would record each call twice.
    """

    def __init__(self) -> None:
        super().__init__()
        self.fallback: otel.TracerProvider | None = None
        """Makes the spans outside of traces: that of an application that has called `agentops.init()`."""
        self._targets: WeakSet[otel.TracerProvider] = WeakSet()
        # Reentrant: the garbage collector may end a stream, and make spans of its tool calls, within these methods.
        self._lock = threading.RLock()
        self._open: WeakKeyDictionary[Trace, _Started] = WeakKeyDictionary()

    def admit(self, provider: otel.TracerProvider) -> None:
        """Let spans go to this provider; until its last holder lets go."""
        self._targets.add(provider)

    def dismiss(self, provider: otel.TracerProvider) -> None:
        """Let no more spans go there."""
        self._targets.discard(provider)

    def target(self, context: Context | None) -> otel.TracerProvider | None:
        found = super().target(context)
        if found is None:
            return self.fallback
        return found if found in self._targets else None

    def get_tracer(
        self,
        instrumenting_module_name: str,
        instrumenting_library_version: str | None = None,
        schema_url: str | None = None,
        attributes: Any = None,
    ) -> otel.Tracer:
        scope = (instrumenting_module_name, instrumenting_library_version, schema_url, attributes)
        return _RememberingTracer(self, super().get_tracer(*scope))

    def remember(self, span: otel.Span) -> None:
        """Record a span that has started."""
        trace = current_trace()
        if trace is None or not span.is_recording():
            return
        with self._lock:
            # A span leads to its trace: what is kept of one that `end_open` has seen last would stay for ever.
            if not trace.closed:
                self._open.setdefault(trace, _Started()).add(span)

    def end_open(self, trace: Trace) -> None:
        """End the spans of a trace that are open: what they are about was given up, or goes on beyond the trace."""
        with self._lock:
            left = self._open.pop(trace, None)
        for span in reversed(left.spans if left is not None else ()):
            if span.is_recording():
                span.end()


class _RememberingTracer(otel.Tracer):
    def __init__(self, provider: AgentOpsProvider, tracer: otel.Tracer) -> None:
        self._provider = provider
        self._tracer = tracer

    def start_span(self, name: str, context: Context | None = None, *args: Any, **kwargs: Any) -> otel.Span:
        span = self._tracer.start_span(name, context, *args, **kwargs)
        self._provider.remember(span)
        return span

    # OpenTelemetry's own type of context manager, which can decorate coroutine functions too, is private.
    @contextmanager
    def start_as_current_span(  # type: ignore[override]
        self, name: str, context: Context | None = None, *args: Any, **kwargs: Any
    ) -> Iterator[otel.Span]:
        with self._tracer.start_as_current_span(name, context, *args, **kwargs) as span:
            yield span


NAME = "agentops"

_NOT_BESIDE = {"weave": "AgentOps and Weave patch the same functions of model clients, and take spans from each other"}


class AgentOpsTracer(OtelTracer):
    """Records what AgentOps' instrumentation sees of agent frameworks and model clients, and what agents emit.

    It needs no account, and sends nothing anywhere unless it is given a key: AgentOps is not initialised, only its
    instrumentation is used. Everything else is as with `OtelTracer`, which turns on OpenTelemetry's instrumentors
    instead; those are off here. Between the first `init` of a process and the last `teardown` the libraries are
    patched.

    An application that has called `agentops.init()` before may do so: what it reports goes on outside of traces, and
    is recorded here in them.

    Args:
        api_key: A key of AgentOps' service: then spans go there too. It is never taken from the environment.
        endpoint: The service's API, where the key becomes a token; None for AgentOps' own.
        exporter_endpoint: Where the service takes spans, by OpenTelemetry's protocol; None for AgentOps' own.
        export_timeout_seconds: How long the last `teardown` waits for the service, and for an OTLP endpoint.
        store_timeout_seconds: See `OtelTracer`.
        cancelled_store_timeout_seconds: See `OtelTracer`.
        global_provider: See `OtelTracer`.

    Raises:
        ConfigError: When the key, or the service's address, cannot be one, an address is given without a key, or
            `export_timeout_seconds` is negative.
    """

    tracer_name = NAME

    @deprecated(
        without_effect={
            "agentops_managed": "AgentOps is not initialised, so there is nothing to manage",
            "instrument_managed": "AgentOps' instrumentation is on between init and teardown, and off after that",
            "daemon": "there is no process beside this one",
        }
    )
    def __init__(
        self,
        *,
        api_key: str | None = None,
        endpoint: str | None = None,
        exporter_endpoint: str | None = None,
        export_timeout_seconds: float = 5.0,
        store_timeout_seconds: float = 30.0,
        cancelled_store_timeout_seconds: float = 1.0,
        global_provider: bool = True,
    ) -> None:
        super().__init__(
            store_timeout_seconds=store_timeout_seconds,
            cancelled_store_timeout_seconds=cancelled_store_timeout_seconds,
            export_timeout_seconds=export_timeout_seconds,
            instrument=(),
            global_provider=global_provider,
        )
        if export_timeout_seconds < 0:
            raise ConfigError(f"export_timeout_seconds is 0 or more, got {export_timeout_seconds}")
        self._service: Service | None = None
        if api_key is not None:
            self._service = Service(
                api_key,
                API_URL if endpoint is None else endpoint,
                TRACES_URL if exporter_endpoint is None else exporter_endpoint,
            )
        elif endpoint is not None or exporter_endpoint is not None:
            raise ConfigError("endpoint and exporter_endpoint are for spans that go to a service; give api_key= too")
        self._service_timeout_seconds = export_timeout_seconds
        self._uses = 0
        self._claim: ProcessClaim | None = None

    def init(self) -> None:
        """See `OtelTracer.init`.

        Raises:
            TracerError: Also when the installed agentops is not one that is known, or the tracer `weave` is at work.
        """
        if self._uses == 0:
            with ExitStack() as undo:
                claim = undo.enter_context(claim_process(NAME, not_beside=_NOT_BESIDE))
                super().init()
                undo.callback(super().teardown)
                start_recording(self.provider)
                undo.callback(stop_recording, self.provider)
                if self._service is not None:
                    self.provider.add_span_processor(self._service.start())
                undo.pop_all()
            self._claim = claim
        self._uses += 1

    def teardown(self) -> None:
        """See `OtelTracer.teardown`; the last one of a process also takes AgentOps' patches back."""
        if self._uses == 0:
            return
        self._uses -= 1
        if self._uses > 0:
            return
        with ExitStack() as undo:
            if self._claim is not None:
                undo.callback(self._claim.release)
            undo.callback(super().teardown)
            if self._service is not None:
                undo.callback(self._service.stop, self._service_timeout_seconds)
            undo.callback(stop_recording, self.provider)

    @asynccontextmanager
    async def trace_context(
        self,
        name: str | None = None,
        *,
        store: "LightningStore | None" = None,
        rollout_id: str | None = None,
        attempt_id: str | None = None,
    ) -> AsyncIterator[Trace]:
        """See `Tracer.trace_context`. A call that is open at the end, such as a stream not read, ends with it.

        With `api_key`, a span `<name>.session` is around the block: without one the service shows each call alone.
        """
        _instrumentation.catch_up()
        with ExitStack() as after:
            async with super().trace_context(name, store=store, rollout_id=rollout_id, attempt_id=attempt_id) as trace:
                # Once more when it is closed: a thread may have started a span in between.
                after.callback(_provider.end_open, trace)
                label = name or rollout_id or "default"
                try:
                    if self._service is None:
                        yield trace
                    else:
                        attributes = {"agentops.span.kind": "session", "operation.name": label}
                        with self.operation_context(f"{label}.session", attributes):
                            yield trace
                finally:
                    _provider.end_open(trace)


_lock = threading.Lock()
_provider = AgentOpsProvider()
_instrumentation = Instrumentation(_provider)
_users = 0


def start_recording(target: otel.TracerProvider) -> None:
    """Switch AgentOps' instrumentation on, unless it is on, for the traces of this provider, too."""
    global _users
    with _lock:
        if _users == 0:
            _instrumentation.start()
            _provider.fallback = _instrumentation.application
            _provider.open()
        _users += 1
        _provider.admit(target)


def stop_recording(target: otel.TracerProvider) -> None:
    """Switch it off after its last user."""
    global _users
    with _lock:
        _provider.dismiss(target)
        _users -= 1
        if _users == 0:
            # Whatever is still under way makes no spans.
            _provider.close()
            _provider.fallback = None
            _instrumentation.stop()
