"""The tracer: Weave's view of an agent, in the traces of the core."""

import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from lightning_core.deprecated import deprecated
from lightning_core.tracer import Trace
from lightning_core.tracer.exclusive import claim_process
from lightning_core.tracer.otel import OtelTracer
from lightning_weave.session import Session, acquire_session, release_session

_PROJECT = re.compile(r"[^/\s]+/[^/\s]+")
_NOT_BESIDE = {"agentops": "both wrap the same functions of model clients, and each then loses spans"}


class WeaveTracer(OtelTracer):
    """Records calls of functions with `@weave.op`, and of the libraries that Weave traces by itself.

    Each call becomes a span, with what went in and what came out, below the one in which it was made; spans that are
    emitted go among them. Attribution and delivery are those of `OtelTracer`. Nothing leaves the machine, unless
    there is a project.

    Between `init` and `teardown` Weave's client of this process is this tracer's: `weave.init` and `weave.finish` have
    no effect. Several of these tracers in one process share it; its patches stay, idle. `init` is refused where the
    tracer `agentops` or another project is at work, the service does not give access to the project, or the program has
    called `weave.init()`.

    Args:
        project: Where calls go as well, as `entity/project` of Weave's service; None for nowhere else.
        api_key: The key of Weave's service; None for that of the environment (`WANDB_API_KEY`, or netrc).
        service_timeout_seconds: How long the last `teardown` waits for Weave's service.
        store_timeout_seconds: How long leaving a trace waits for the store.
        cancelled_store_timeout_seconds: The same when it was cancelled.
        export_timeout_seconds: How long the last `teardown` waits for an OTLP endpoint.
        instrument: OpenTelemetry instrumentors to turn on besides; see `OtelTracer`. Those of model clients would
            record calls that Weave records too.
        global_provider: See `OtelTracer`.

    Raises:
        ValueError: When `project` is not of the form `entity/project`, the key is empty or without a project, or
            `service_timeout_seconds` is negative.
    """

    tracer_name = "weave"

    @deprecated(
        without_effect={
            "project_name": "it named a project that nothing was sent to; project='entity/project' sends calls there",
            "weave_user_settings": "Weave reads its settings from WEAVE_ variables of the environment",
            "instrument_managed": "without a project nothing is sent",
        }
    )
    def __init__(
        self,
        *,
        project: str | None = None,
        api_key: str | None = None,
        service_timeout_seconds: float = 10.0,
        store_timeout_seconds: float = 30.0,
        cancelled_store_timeout_seconds: float = 1.0,
        export_timeout_seconds: float = 1.0,
        instrument: Sequence[str] = (),
        global_provider: bool = True,
    ) -> None:
        super().__init__(
            store_timeout_seconds=store_timeout_seconds,
            cancelled_store_timeout_seconds=cancelled_store_timeout_seconds,
            export_timeout_seconds=export_timeout_seconds,
            instrument=instrument,
            global_provider=global_provider,
        )
        if project is not None and not (isinstance(project, str) and _PROJECT.fullmatch(project)):
            raise ValueError(f"project is 'entity/project', as in the address of Weave's page of it; got {project!r}")
        if api_key is not None and project is None:
            raise ValueError("api_key is for sending calls to a project of Weave's service; give project= too")
        if api_key is not None and not (isinstance(api_key, str) and api_key.strip()):
            raise ValueError("api_key is empty; give the key of Weave's service, or leave api_key out")
        if service_timeout_seconds < 0:
            raise ValueError(f"service_timeout_seconds is 0 or more, got {service_timeout_seconds}")
        self._project = project
        self._api_key = api_key
        self._service_timeout_seconds = service_timeout_seconds
        self._session: Session | None = None

    def _turn_on(self, undo: ExitStack) -> None:
        undo.enter_context(claim_process("weave", not_beside=_NOT_BESIDE))
        self._session = acquire_session(self._project, self._api_key, self._service_timeout_seconds)
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
