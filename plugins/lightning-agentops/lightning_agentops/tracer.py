"""The tracer `agentops`."""

import threading
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any
from weakref import WeakSet

from opentelemetry import trace as otel
from opentelemetry.context import Context

from lightning_agentops.library import Instrumentation
from lightning_agentops.service import API_URL, TRACES_URL, Service
from lightning_core.deprecated import deprecated
from lightning_core.errors import ConfigError
from lightning_core.tracer import OtelTracer, Trace
from lightning_core.tracer.exclusive import claim_process
from lightning_core.tracer.export import SpanExport
from lightning_core.tracer.provider import RoutingProvider


class AgentOpsProvider(RoutingProvider):
    """Gives each span to the provider of the trace in which it starts, where that is of an AgentOps tracer.

    Another tracer of this process has instrumentation of its own, and would record each call twice.
    """

    def __init__(self) -> None:
        super().__init__()
        self.targets: WeakSet[otel.TracerProvider] = WeakSet()

    def target(self, context: Context | None) -> otel.TracerProvider | None:
        found = super().target(context)
        return found if found in self.targets else None

    def shutdown(self) -> None:
        """Do nothing: AgentOps calls this at the end of the process."""


_provider = AgentOpsProvider()
_instrumentation = Instrumentation(_provider)
_lock = threading.Lock()

NAME = "agentops"

_NOT_BESIDE = {"weave": "AgentOps and Weave patch the same functions of model clients, and take spans from each other"}


class AgentOpsTracer(OtelTracer):
    """Records what AgentOps' instrumentation sees of agent frameworks and model clients, and what agents emit.

    It needs no account, and sends nothing anywhere unless it is given a key: AgentOps is not initialised, only its
    instrumentation is used. Everything else is as with `OtelTracer`, which turns on OpenTelemetry's instrumentors
    instead; those are off here. From the first `init` of a process on the libraries are patched; outside of this
    tracer's traces their calls make no spans. `init` is refused where another version of agentops is installed, the
    program has called `agentops.init()`, or the tracer `weave` is at work. Patches stay after `teardown`, and record
    nothing.

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
            "instrument_managed": "AgentOps' instrumentation is switched on with the tracer",
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

    def _turn_on(self, undo: ExitStack) -> None:
        undo.enter_context(claim_process(NAME, not_beside=_NOT_BESIDE))
        with _lock:
            _instrumentation.start()
        super()._turn_on(undo)
        _provider.targets.add(self.provider)
        undo.callback(_provider.targets.discard, self.provider)

    def _exports(self) -> list[SpanExport]:
        return super()._exports() + ([] if self._service is None else [self._service.export()])

    def _open(self, trace: Trace) -> AbstractContextManager[Any]:
        """With `api_key`, a span `<name>.session` is around the block: without one the service shows each call alone.

        What the agent has imported since then is instrumented, too.
        """
        with _lock:
            _instrumentation.catch_up()
        if self._service is None:
            return nullcontext()
        label = trace.name or trace.rollout_id or "default"
        return self.operation_context(f"{label}.session", {"agentops.span.kind": "session", "operation.name": label})
