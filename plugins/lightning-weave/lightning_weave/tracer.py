"""The tracer: Weave's view of an agent, in the traces of the core."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from lightning_core.deprecated import deprecated
from lightning_core.tracer import Trace
from lightning_core.tracer.exclusive import claim_process
from lightning_core.tracer.otel import OtelTracer
from lightning_weave.session import Session, acquire_session, release_session

_NOT_BESIDE = {"agentops": "both wrap the same functions of model clients, and each then loses spans"}


class WeaveTracer(OtelTracer):
    """Records calls of functions with `@weave.op`, and of the libraries that Weave traces by itself.

    Each call becomes a span, with what went in and what came out, below the one in which it was made; spans that are
    emitted go among them. Attribution and delivery are those of `OtelTracer`. Nothing goes to Weave's service.

    Between `init` and `teardown` Weave's client of this process is this tracer's: `weave.init` and `weave.finish` have
    no effect. Several of these tracers in one process share it; its patches stay, idle. `init` is refused where the
    tracer `agentops` is at work, or the program has called `weave.init()`.

    Args:
        store_timeout_seconds: How long leaving a trace waits for the store.
        instrument: OpenTelemetry instrumentors to turn on besides; see `OtelTracer`. Those of model clients would
            record calls that Weave records too.
    """

    tracer_name = "weave"

    @deprecated(
        without_effect={
            "project_name": "it named a project that nothing was sent to",
            "weave_user_settings": "Weave reads its settings from WEAVE_ variables of the environment",
            "instrument_managed": "nothing is sent",
        }
    )
    def __init__(
        self,
        *,
        store_timeout_seconds: float = 30.0,
        instrument: Sequence[str] = (),
    ) -> None:
        super().__init__(
            store_timeout_seconds=store_timeout_seconds,
            instrument=instrument,
        )
        self._session: Session | None = None

    def _turn_on(self, undo: ExitStack) -> None:
        undo.enter_context(claim_process("weave", not_beside=_NOT_BESIDE))
        self._session = acquire_session()
        undo.callback(release_session)
        super()._turn_on(undo)

    @contextmanager
    def _open(self, trace: Trace) -> Iterator[None]:
        """A call that has not ended when the trace is left is a failed span."""
        try:
            yield
        finally:
            if self._session is not None:
                self._session.server.end_open(trace)
