"""A store's server, and the middleware that lets requests in: who asks, about which run."""

import asyncio
import logging
import os
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Literal, Self

from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lightning_core.concurrency import EventLoopThread, Startable, loop_factory
from lightning_core.deprecated import deprecated
from lightning_core.errors import ConfigError, StoreError
from lightning_core.model_proxy import KEY_VARIABLE
from lightning_core.store.base import LightningStore, LightningStoreCapabilities
from lightning_core.store.threaded import ForwardingStore
from lightning_core.store.tracking import MetricsBackend
from lightning_core.types import Attempt, AttemptedRollout, Rollout
from lightning_http.app import application
from lightning_http.auth import Keys
from lightning_http.call import ANSWERED, CLIENT_GONE, Call, Limits, Service, answer_error
from lightning_http.client import LightningStoreClient
from lightning_http.listener import Listener, bind
from lightning_http.messages import DEFAULT_PORT, LEASE_HEADER, OPEN_PATHS, RUN_HEADER, RUNNER_KEY_VARIABLE, TRACES_PATH
from lightning_http.metrics import Metrics
from lightning_http.web_pages import require_key, require_local, require_same_site, url_of

logger = logging.getLogger(__name__)


class Gate:
    """Lets only requests in that may come, with the `Call` in their state.

    Args:
        service: What all requests share.
        app: The application, which may be that of many servers.
    """

    def __init__(self, service: Service, app: ASGIApp) -> None:
        self._service = service
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status, added = time.perf_counter(), CLIENT_GONE, list[tuple[bytes, bytes]]()
        has_started = False

        async def noted_send(message: Message) -> None:
            nonlocal status, has_started
            if message["type"] == "http.response.start":
                status, has_started = message["status"], True
                message["headers"] = [*message.get("headers", ()), *added]
            await send(message)

        self._service.metrics.begin()
        try:
            added += self._admit(scope)
            scope["app"] = self._app
            await self._app(scope, receive, noted_send)
        except asyncio.CancelledError:
            status = CLIENT_GONE
            raise
        except Exception as exc:
            if has_started or not isinstance(exc, ANSWERED):
                logger.exception("lightning.store_request_failed path=%s", scope["path"])
            if not has_started:
                await answer_error(exc, Request(scope))(scope, receive, noted_send)
        finally:
            route = getattr(scope.get("route"), "path_format", "unknown")
            await self._service.metrics.end(scope["method"], route, status, time.perf_counter() - began)

    def _admit(self, scope: Scope) -> list[tuple[bytes, bytes]]:
        """Let the request in; return the headers of its answer."""
        # As a dict, because most of those that are asked for are not there. Of two of a name, the first counts.
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in reversed(scope["headers"])}
        if self._service.local_only:
            require_local(headers)
        require_same_site(
            scope["method"],
            headers,
            self._service.cors_allow_origins,
            hint="; allow it with --cors-origin or cors_allow_origins",
        )
        state: dict[str, Any] = {"service": self._service}
        scope["state"] = state
        if scope["path"] in OPEN_PATHS:
            return []
        call = state["call"] = Call.identified(self._service, headers)
        lease_seconds = call.store.lease_seconds
        lease = [] if lease_seconds is None else [(LEASE_HEADER.encode(), b"%r" % lease_seconds)]
        return [(RUN_HEADER.encode(), call.store.run_id.encode()), *lease]


async def drain(service: Service, *, seconds: float) -> None:
    """Give no more claims, and wait for the attempts that run.

    Reports and spans are taken as before. An attempt that has not ended in time goes on, where its worker holds a
    lease: it reports to the next server of the store, or loses its lease. The others have no lease that could lapse, so
    they are released: their rollouts are queued again.

    Args:
        service: What the server's requests share.
        seconds: How long to wait, unless the service hurries.
    """
    service.draining.set()
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while await _running(service) and not service.hurries:
                await service.reported.wait()
                service.reported.clear()
    for store, rollout in await _running(service):
        await _release(store, rollout)


async def _running(service: Service) -> list[tuple[LightningStore, Rollout]]:
    return [
        (store, rollout)
        for store in service.views()
        for rollout in await store.query_rollouts(status_in=["preparing", "running"])
    ]


async def _release(store: LightningStore, rollout: Rollout) -> None:
    if not isinstance(rollout, AttemptedRollout):
        return
    worker_id, attempt_id = rollout.attempt.worker_id, rollout.attempt.attempt_id
    worker = None if worker_id is None else await store.get_worker_by_id(worker_id)
    if worker is not None and worker.last_heartbeat_time is not None:
        return
    try:
        await store.report_fault(rollout.rollout_id, attempt_id, "the store's server was stopped while it ran")
    except StoreError as exc:  # it has ended since
        logger.info("lightning.attempt_not_released attempt_id=%s reason=%s", attempt_id, exc)


_STOP_SECONDS = 5.0
"""How long requests may go on when a server stops."""


class LightningStoreServer(Startable, ForwardingStore):
    """Serves a store over HTTP, with the REST API of agentlightning 0.3 and more.

    It runs in the event loop that starts it:

        async with LightningStoreServer(store) as server:
            client = LightningStoreClient(server.url)

    or, for a caller that has none, in a thread of its own: `with LightningStoreServer(store) as server`. It is a store
    itself, which hands every call to the one behind it; in another process, after a fork or pickled, it is a client.
    Stopping the server leaves the store open; `aclose` ends both.

    Args:
        store: What is served. It is not closed by the server.
        host: The address to listen on; None for 127.0.0.1. One that other machines can reach demands a key.
        port: The port; 0 lets the system choose one, None is 4747.
        key: What the algorithm says to do everything; None for the variable `AGL_KEY`, `""` for none.
        runner_key: What runners may say instead; None for the variable `AGL_RUNNER_KEY`.
        cors_allow_origins: The web pages that may ask, by their origins; none by default. Those that are named, not
            `*`, may send cookies and keys.
        launch_mode: Where `start` runs it: `asyncio` in the event loop that calls it, `thread` or `mp` in a thread of
            its own.
        launcher_args: In place of `host`, `port` and `launch_mode`: an object that has them.
        limits: How much one request may ask for.
        attempt_key_seconds: How long the key that comes with a claim is good.
        drain_seconds: How long `run_forever` waits for running attempts when it is told to stop.
        tracker: Where requests are counted; None for where the store counts, or else for the server alone. `GET
            /metrics` shows what Prometheus can read of it, and how the store stands.

    Raises:
        ConfigError: When the host demands a key and there is none, or a key cannot be one.
    """

    @deprecated(
        without_effect={
            "n_workers": "one process serves; several servers can share one database",
        },
    )
    def __init__(
        self,
        store: LightningStore,
        host: str | None = "127.0.0.1",
        port: int | None = 0,
        cors_allow_origins: Sequence[str] | None = None,
        launch_mode: Literal["asyncio", "thread", "mp"] = "asyncio",
        *,
        launcher_args: Any = None,
        key: str | None = None,
        runner_key: str | None = None,
        limits: Limits | None = None,
        attempt_key_seconds: float = 86_400.0,
        drain_seconds: float = 10.0,
        tracker: MetricsBackend | None = None,
    ) -> None:
        if launcher_args is not None:
            host, port, launch_mode = launcher_args.host, launcher_args.port or 0, launcher_args.launch_mode
        if launch_mode not in ("asyncio", "thread", "mp"):
            raise ConfigError(f"launch_mode is {launch_mode!r}; it is 'asyncio' or 'thread'")
        host = "127.0.0.1" if host is None else host
        origins = [cors_allow_origins] if isinstance(cors_allow_origins, str) else [*(cors_allow_origins or ())]
        self.store = store
        self._key = (os.environ.get(KEY_VARIABLE) if key is None else key) or None
        runners = (os.environ.get(RUNNER_KEY_VARIABLE) if runner_key is None else runner_key) or None
        require_key(host, self._key, what="the store", give=f"key=, --key or {KEY_VARIABLE}")
        self._runner_key = runners
        self._keys = Keys(self._key, runner_key=runners, attempt_seconds=attempt_key_seconds)
        self._host = host
        self._port = DEFAULT_PORT if port is None else port
        self._launch_mode = launch_mode
        self._limits = Limits() if limits is None else limits
        self._origins = origins
        self._drain_seconds = drain_seconds
        self._metrics = Metrics(getattr(store, "tracker", None) if tracker is None else tracker)
        self._owner = os.getpid()
        self._elsewhere: LightningStoreClient | None = None
        self._service: Service | None = None
        self._listener: Listener | None = None
        self._thread: EventLoopThread | None = None

    # Where it is

    @property
    def url(self) -> str:
        """Where clients find it, such as `http://127.0.0.1:4747`; known once it is started.

        Raises:
            StoreError: When the system is to choose the port, and has not yet.
        """
        if self._port == 0:
            raise StoreError("the port is not chosen yet; start the server first")
        return url_of(self._host, self._port)

    @property
    def endpoint(self) -> str:
        """The same as `url`, as agentlightning 0.3 calls it."""
        return self.url

    def otlp_traces_endpoint(self) -> str:
        """Return where OpenTelemetry's exporters send spans."""
        return self.url + TRACES_PATH

    def attempt_key(self, attempt: Attempt) -> str | None:
        """Return the key that a claim of this attempt over HTTP comes with, for runners in the server's process."""
        if os.getpid() != self._owner:
            return super().attempt_key(attempt)
        return self._keys.mint(self.run_id, attempt.rollout_id, attempt.attempt_id, time.time())

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        return {**self.target().capabilities, "otlp_traces": True}

    def target(self) -> LightningStore:
        if os.getpid() == self._owner:
            return self.store
        if self._elsewhere is None:
            self._elsewhere = _client_of(self.url, self._key, self.store.run_id)
        return self._elsewhere

    def client_of_runners(self) -> LightningStoreClient:
        """Return a client with the key of runners, where there is one: it may do less than the algorithm's."""
        return _client_of(self.url, self._runner_key or self._key, self.run_id)

    def __reduce__(self) -> Any:
        return _client_of, (self.url, self._key, self.run_id)

    # From start to stop

    async def start(self) -> None:
        """Listen, in this event loop or in a thread; return when requests are answered.

        Raises:
            ConfigError: When the port cannot be had.
            StoreError: When the server runs already.
        """
        if self._listener is not None or self._thread is not None:
            raise StoreError(f"this server runs already, at {self.url}")
        if self._launch_mode == "asyncio":
            await self._start()
        else:
            await asyncio.to_thread(self.__enter__)

    async def _start(self) -> None:
        local_only = self._key is None
        service = Service(
            self.store,
            self._keys,
            self._limits,
            local_only=local_only,
            cors_allow_origins=self._origins,
            metrics=self._metrics,
        )
        bound = bind(self._host, self._port)
        gate: Any = Gate(service, application())
        if self._origins:
            gate = CORSMiddleware(
                gate,
                allow_origins=self._origins,
                allow_methods=["*"],
                allow_headers=["*"],
                expose_headers=["*"],
                allow_credentials="*" not in self._origins,
            )
        listener = Listener(gate, bound, self._limits)
        port = bound.getsockname()[1]
        try:
            await listener.open()
        except BaseException:  # also a start that is cancelled: no other code knows the listener yet
            await listener.close(seconds=0)
            raise
        self._service, self._listener, self._port = service, listener, port

    async def stop(self) -> None:
        """Answer the requests under way, end waits, and stop. The store stays open. Idempotent."""
        if self._thread is not None:
            await asyncio.to_thread(self.__exit__, None, None, None)
            return
        listener, self._listener = self._listener, None
        if listener is None or self._service is None:
            return
        self._service.draining.set()
        self._service.closing.set()
        await listener.close(seconds=_STOP_SECONDS)

    async def drain(self) -> None:
        """Give no more claims, wait for running attempts for at most `drain_seconds`, then stop."""
        if self._service is not None and self._listener is not None and self._thread is None:
            await drain(self._service, seconds=self._drain_seconds)
        await self.stop()

    def hurry(self) -> None:
        """Let `drain` wait no longer."""
        if self._service is not None:
            self._service.hurries = True
            self._service.reported.set()

    async def run_forever(self) -> None:
        """Serve until the process is told to end (SIGTERM, Ctrl-C), then drain. A second signal ends the wait.

        Call it in the main thread. A server that does not run yet is started.
        """
        if self._listener is None:
            await self._start()
        stopping = asyncio.Event()

        def on_signal() -> None:
            if stopping.is_set():
                self.hurry()
            stopping.set()

        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, on_signal)
        try:
            # Also while no client waits: a process that stood still notices it, and takes nothing from living workers.
            async with self.store.keeping_deadlines():
                await stopping.wait()
            await self.drain()
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)
            await self.stop()

    async def aclose(self) -> None:
        """Stop the server, and close the store."""
        if os.getpid() == self._owner:
            await self.stop()
        await self.target().aclose()

    # In a thread

    def __enter__(self) -> Self:
        if self._listener is not None or self._thread is not None:
            raise StoreError(f"this server runs already, at {self.url}")
        if not self.store.capabilities.get("thread_safe"):
            raise ConfigError(
                f"{type(self.store).__name__} is not thread_safe, so it cannot be served from a thread of its own; "
                "serve it in its event loop, with 'async with'"
            )
        thread = EventLoopThread("store server", loop_factory=loop_factory(), at_end=self.stop)
        try:
            thread.submit(self._start()).result()
        except BaseException:  # also Ctrl-C, while it opens
            thread.stop()
            thread.join()
            raise
        self._thread = thread
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.stop()
            thread.join()
            thread.ended.result()


def _client_of(url: str, key: str | None, run_id: str) -> LightningStoreClient:
    return LightningStoreClient(url, key=key or "", run_id=run_id)
