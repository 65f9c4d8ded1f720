"""The tracer `agentops`."""

import threading
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any
from weakref import WeakSet

from opentelemetry import trace as otel
from opentelemetry.context import Context

from lightning_agentops.library import Instrumentation
from lightning_core.deprecated import deprecated
from lightning_core.tracer import OtelTracer, Trace
from lightning_core.tracer.exclusive import claim_process
from lightning_core.tracer.provider import RoutingProvider


class AgentOpsProvider(RoutingProvider):
    """Gives each span to the provider of the trace in which it starts, where that is of an AgentOps tracer.

    Another tracer of this process has instrumentation of its own, and would record each call twice.
    """

    def __init__(self) -> None:
        super().__init__()
        self.targets: WeakSet[otel.TracerProvider] = WeakSet()

    def target(self, context: Context | None) -> otel.TracerProvider | None:
        provider = super().target(context)
        return provider if provider in self.targets else None

    def shutdown(self) -> None:
        """Do nothing: AgentOps calls this at the end of the process."""


_provider = AgentOpsProvider()
_instrumentation = Instrumentation(_provider)
_lock = threading.Lock()

NAME = "agentops"

_NOT_BESIDE = {"weave": "AgentOps and Weave patch the same functions of model clients, and take spans from each other"}


class AgentOpsTracer(OtelTracer):
    """Records what AgentOps' instrumentation sees of agent frameworks and model clients, and what agents emit.

    It needs no account, and sends nothing to AgentOps, which is not initialised: only its instrumentation is used.
    Everything else is as with `OtelTracer`, which turns on OpenTelemetry's instrumentors instead; those are off here.
    From the first `init` of a process on the libraries are patched; outside of this tracer's traces their calls make no
    spans. `init` is refused where another version of agentops is installed, the program has called `agentops.init()`,
    or the tracer `weave` is at work. Patches stay after `teardown`, and record nothing.

    Args:
        store_timeout_seconds: See `OtelTracer`.
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
        store_timeout_seconds: float = 30.0,
    ) -> None:
        super().__init__(
            store_timeout_seconds=store_timeout_seconds,
            instrument=(),
        )

    def _turn_on(self, undo: ExitStack) -> None:
        undo.enter_context(claim_process(NAME, not_beside=_NOT_BESIDE))
        with _lock:
            _instrumentation.start()
        super()._turn_on(undo)
        _provider.targets.add(self.provider)
        undo.callback(_provider.targets.discard, self.provider)

    def _open(self, trace: Trace) -> AbstractContextManager[Any]:
        """Instrument what the agent has imported since `init`."""
        with _lock:
            _instrumentation.catch_up()
        return nullcontext()
