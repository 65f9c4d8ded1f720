"""A proxy in its event loop: all of its parts, from its start to its stop; and where that event loop runs."""

import asyncio
import gc
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict
from typing import Any, TypeVar

from lightning_http.auth import Keys
from lightning_http.listener import Listener, bind
from starlette.middleware.cors import CORSMiddleware

from lightning_core.budget import Budget
from lightning_core.concurrency import EventLoopThread, loop_factory
from lightning_core.errors import ProxyError, StoreUnavailable
from lightning_core.registry import Registry
from lightning_core.store import LightningStore
from lightning_core.store.clock import Clock
from lightning_proxy.admit import Limiter, Spending
from lightning_proxy.app import App
from lightning_proxy.conversion import StoredItems
from lightning_proxy.models import Models, make_replicas, require_prices
from lightning_proxy.outbox import Outbox
from lightning_proxy.owner import Attribution, LiveAttempts, Owner
from lightning_proxy.paths import OpenPaths
from lightning_proxy.reader import CallReader
from lightning_proxy.replicas import Replica, Replicas
from lightning_proxy.routes import ControlRoutes
from lightning_proxy.send import Sender
from lightning_proxy.settings import Settings
from lightning_proxy.spans import Capture

T = TypeVar("T")

_MAX_VIEWS = 256
STOP_SECONDS = 5.0
"""How long calls may go on when the proxy stops, and how long it then waits for the store."""


def collect_rarely() -> None:
    """Have this process look for garbage less often. An answer with tokens is thousands of small objects.

    Collecting as often as usual takes a third of the time, and finds nothing.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)


class ProxyService:
    """The parts of a running proxy. Belongs to one event loop.

    Args:
        store: Where calls are recorded; None to record none.
        keys: Who may do what.
        settings: Its limits.
        capture: What is recorded of what was said.
        budget: The run's; None for no limit.
        registry: Where backends are found.
        clock: How long waits for the store and for backends last.
    """

    def __init__(
        self,
        store: LightningStore | None,
        *,
        keys: Keys,
        settings: Settings,
        capture: Capture,
        budget: Budget | None,
        registry: Registry,
        clock: Clock,
    ) -> None:
        self._store = store
        self._settings = settings
        self._registry = registry
        self._budget = budget
        self._views: OrderedDict[str, LightningStore] = OrderedDict()
        self._closing: set[asyncio.Task[None]] = set()
        self._listener: Listener | None = None
        self.attempts = attempts = LiveAttempts(self._view, clock)
        self.outbox = outbox = Outbox(
            self._view, clock, max_spans=settings.max_unsent_spans, max_bytes=settings.max_unsent_bytes
        )
        self.limiter = limiter = Limiter(
            max_calls=settings.max_concurrent_calls,
            max_waiting=settings.max_waiting_calls,
            queue_seconds=settings.queue_seconds,
            pause_seconds=settings.pause_seconds,
        )
        self.spending = Spending(budget, settings.attempt_limits)
        self.replicas = replicas = Replicas(clock, self._retire)
        models = Models(settings.models)
        self.sender = Sender(
            replicas,
            models,
            limiter,
            clock,
            retries=settings.num_retries,
            first_pause_seconds=settings.first_retry_seconds,
        )
        open_paths = OpenPaths(settings.allow_paths)
        self.app = App(
            attribution=Attribution(keys, header=settings.attribution_header),
            attempts=attempts,
            reader=CallReader(attempts, outbox, replicas, models, StoredItems(), open_paths, settings),
            outbox=outbox,
            limiter=limiter,
            spending=self.spending,
            replicas=replicas,
            models=models,
            sender=self.sender,
            capture=capture,
            routes=ControlRoutes(
                attempts,
                outbox,
                limiter,
                self.sender,
                keys.required,
                self.flush,
                self.update_model_list,
                self.status,
            ),
            run_id=None if store is None else store.run_id,
            local_only=not keys.required,
            settings=settings,
        )

    async def start(self, host: str, port: int) -> int:
        """Listen, and return the port when requests are answered.

        Raises:
            ConfigError: When the port cannot be had, or a price is needed and not known.
        """
        if self.spending.limits_usd:
            await asyncio.to_thread(require_prices, self.replicas.all, self._registry)  # LiteLLM may be imported
        bound = bind(host, port)
        found: int = bound.getsockname()[1]
        app: Any = self.app
        if origins := self._settings.cors_allow_origins:
            every = ["*"]
            app = CORSMiddleware(
                app, allow_origins=origins, allow_methods=every, allow_headers=every, expose_headers=every
            )
        # Known before it is open: a start may be cancelled.
        self._listener = listener = Listener(app, bound, self._settings)
        await listener.open()
        return found

    async def stop(self) -> None:
        """Let calls end, bring their spans to the store, and close everything."""
        listener, self._listener = self._listener, None
        self.limiter.close()
        if listener is not None:
            await listener.close(seconds=STOP_SECONDS)
        await self.attempts.aclose()
        await self.outbox.aclose(STOP_SECONDS)
        self.replicas.replace([])
        while self._closing:
            await asyncio.wait(self._closing)

    def update_model_list(self, model_list: Sequence[Mapping[str, Any]]) -> None:
        """Send calls to other replicas from now on. Those that have not changed keep their connections.

        Raises:
            ConfigError: When an entry is wrong; then nothing changes.
            RegistryError: When a backend cannot be had; then nothing changes.
        """
        replicas = make_replicas(model_list, self._registry, self.replicas.all)
        if self.spending.limits_usd:
            require_prices(replicas, self._registry)
        self.replicas.replace(replicas)

    async def flush(self, owner: Owner, end: bool) -> None:
        """Return when the store has the calls of an attempt.

        Args:
            owner: The attempt.
            end: Whether it has ended: calls in flight are cut off after a moment, and no other one begins. Otherwise
                they go on, and are not waited for.

        Raises:
            StoreUnavailable: When the store did not take them in time.
            CallsLost: When calls of it are gone for good.
        """
        if end:
            self.attempts.end(owner)
            self.spending.end_attempt(owner)
        await self.outbox.flush(
            owner,
            grace_seconds=self._settings.flush_grace_seconds,
            timeout_seconds=self._settings.flush_seconds,
            end=end,
        )

    def status(self) -> dict[str, Any]:
        """Return how it stands."""
        return {
            **asdict(self.app.counts),
            "in_flight": self.limiter.in_flight,
            "waiting": self.limiter.waiting,
            "is_paused": self.limiter.is_paused,
            "unsent_spans": self.outbox.unsent,
            "lost_spans": self.outbox.lost,
            "weight_version": self.sender.weight_version,
            "budget": None if self._budget is None else self._budget.status(),
            "replicas": [
                {
                    "model_name": replica.model_name,
                    "backend": replica.backend.address,
                    "in_flight": replica.in_flight,
                    "is_up": not replica.down_until,
                }
                for replica in self.replicas.all
            ],
        }

    def set_store(self, store: LightningStore) -> None:
        """Record calls in another store from now on.

        Raises:
            ProxyError: When it has calls that the present store does not have yet.
        """
        if self.outbox.is_busy:
            raise ProxyError("calls are on their way to the present store; flush them before it gets another one")
        self._store, self.app.run_id = store, store.run_id
        self._views.clear()

    def _view(self, run_id: str | None) -> LightningStore:
        assert self._store is not None  # calls of an attempt are served only where there is a store
        if run_id is None or run_id == self._store.run_id:
            return self._store
        view = self._views.get(run_id)
        if view is None:
            view = self._views[run_id] = self._store.for_run(run_id)
            if len(self._views) > _MAX_VIEWS:
                self._views.popitem(last=False)
        return view

    def _retire(self, replica: Replica) -> None:
        if replica.is_owned:
            task = asyncio.get_running_loop().create_task(replica.backend.aclose())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)


class RunningService:
    """Runs a service in this event loop, or in a thread with one of its own.

    Args:
        make: Makes the service, in the event loop that it belongs to.
        in_thread: Whether that is another one than the caller's.
    """

    def __init__(self, make: Callable[[], ProxyService], *, in_thread: bool) -> None:
        self._make = make
        self._thread = None
        if in_thread:
            self._thread = EventLoopThread("model proxy", loop_factory=loop_factory(), at_end=self._close)
        self._loop = self._thread.loop if self._thread is not None else asyncio.get_running_loop()
        self._service: ProxyService | None = None
        self._opening = asyncio.Lock()

    async def start(self, host: str, port: int) -> int:
        """Start it, and return its port.

        Raises:
            ConfigError: When it cannot listen there, or its model list is wrong.
        """
        if self._thread is None:
            return await self._open(host, port)
        try:
            return await asyncio.shield(asyncio.wrap_future(self._submit(self._open(host, port))))
        except BaseException:  # a start that is not waited for comes to its end, and is undone
            self._thread.stop()
            await asyncio.to_thread(self._thread.join)
            raise

    async def stop(self) -> None:
        """Stop it. It comes to its end also where the caller does not wait for that any more."""
        if self._thread is None:
            await asyncio.shield(asyncio.ensure_future(self._close()))
            return
        self._thread.stop()
        await asyncio.shield(asyncio.wrap_future(self._thread.ended))
        await asyncio.to_thread(self._thread.join)

    async def ask(self, method: Callable[[ProxyService], Awaitable[T]]) -> T:
        """Call something in the service's event loop, and wait for it."""

        async def call() -> T:
            return await method(self._started())

        if self._is_here():
            return await call()
        return await asyncio.wrap_future(self._submit(call()))

    def tell(self, method: Callable[[ProxyService], T]) -> T:
        """Do the same with what takes no time."""

        async def call() -> T:
            return method(self._started())

        return method(self._started()) if self._is_here() else self._submit(call()).result()

    def _started(self) -> ProxyService:
        if self._service is None:
            raise ProxyError("the proxy does not run; start it first")
        return self._service

    async def _open(self, host: str, port: int) -> int:
        async with self._opening:
            service = self._make()
            try:
                found = await service.start(host, port)
            except BaseException:
                await service.stop()
                raise
            self._service = service
            return found

    async def _close(self) -> None:
        async with self._opening:
            service, self._service = self._service, None
            if service is not None:
                await service.stop()

    def _is_here(self) -> bool:
        try:
            return asyncio.get_running_loop() is self._loop
        except RuntimeError:
            return False

    def _submit(self, call: Coroutine[Any, Any, T]) -> "Future[T]":
        try:
            return asyncio.run_coroutine_threadsafe(call, self._loop)
        except RuntimeError as exc:
            call.close()
            raise StoreUnavailable("the proxy has stopped") from exc
