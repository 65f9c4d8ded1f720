"""A proxy in its event loop: all of its parts, from its start to its stop."""

import asyncio
import gc
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from lightning_http.auth import Keys
from lightning_http.listener import Listener, bind
from starlette.middleware.cors import CORSMiddleware

from lightning_core.budget import Budget
from lightning_core.errors import ProxyError
from lightning_core.registry import Registry
from lightning_core.store import LightningStore
from lightning_core.store.clock import Clock
from lightning_proxy.control import ProxyControl, Settings
from lightning_proxy.dispatch import Sender
from lightning_proxy.engine import Engine
from lightning_proxy.limiter import Drained, Limiter
from lightning_proxy.model_list import Models, make_replicas, require_prices
from lightning_proxy.outbox import Outbox
from lightning_proxy.owner import Attribution, LiveAttempts, Owner
from lightning_proxy.paths import OpenPaths
from lightning_proxy.replicas import Replica, Replicas
from lightning_proxy.request import App, IncomingBodies
from lightning_proxy.routes import ControlRoutes
from lightning_proxy.spans import Capture
from lightning_proxy.spending import Spending

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


class ProxyService(ProxyControl):
    """The parts of a running proxy. Belongs to one event loop.

    Args:
        store: Where calls are recorded; None to record none.
        keys: Who may do what.
        settings: Its limits.
        capture: What is recorded of what was said.
        budget: The run's; None for no limit.
        registry: Where backends are found.
        clock: How long waits last.
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
        self.attribution = Attribution(keys, header=settings.attribution_header)
        self.attempts = LiveAttempts(self._view, clock)
        self.outbox = Outbox(
            self._view,
            clock,
            max_spans=settings.max_unsent_spans,
            max_bytes=settings.max_unsent_bytes,
        )
        self.limiter = Limiter(
            clock,
            max_calls=settings.max_concurrent_calls,
            max_waiting=settings.max_waiting_calls,
            queue_seconds=settings.queue_seconds,
            pause_seconds=settings.pause_seconds,
        )
        self.replicas = Replicas(clock, self._retire)
        models = Models(settings.models)
        self.sender = Sender(
            self.replicas,
            models,
            self.limiter,
            clock,
            retries=settings.num_retries,
            first_pause_seconds=settings.first_retry_seconds,
        )
        self.spending = Spending(budget, settings.attempt_limits)
        routes = ControlRoutes(self, self.attempts, self.outbox, has_keys=keys.required)
        self.engine = Engine(
            attribution=self.attribution,
            attempts=self.attempts,
            outbox=self.outbox,
            limiter=self.limiter,
            replicas=self.replicas,
            models=models,
            sender=self.sender,
            capture=capture,
            spending=self.spending if self.spending.has_limits else None,
            open_paths=OpenPaths(settings.allow_paths),
            serve_control=routes.serve,
            run_id=None if store is None else store.run_id,
            local_only=not keys.required,
            settings=settings,
        )

    async def start(self, host: str, port: int) -> int:
        if self.spending.limits_usd:
            await asyncio.to_thread(require_prices, self.replicas.all, self._registry)  # LiteLLM may be imported
        bound = bind(host, port)
        found: int = bound.getsockname()[1]
        app: App = IncomingBodies(self.engine, self._settings.max_incoming_bytes)
        if origins := self._settings.cors_allow_origins:
            every = ["*"]
            app = CORSMiddleware(
                app, allow_origins=origins, allow_methods=every, allow_headers=every, expose_headers=every
            )
        self._listener = listener = Listener(
            app, bound, self._settings
        )  # known before it is open: a start may be cancelled
        await listener.open()
        return found

    async def stop(self) -> None:
        listener, self._listener = self._listener, None
        self.limiter.close()
        if listener is not None:
            await listener.close(seconds=STOP_SECONDS)
        await self.attempts.aclose()
        await self.outbox.aclose(STOP_SECONDS)
        self.replicas.replace([])
        while self._closing:
            await asyncio.wait(self._closing)

    # ProxyControl: none of this waits, but for draining and flushing

    async def pause(self, seconds: float | None = None) -> None:
        self.limiter.pause(seconds)

    async def resume(self) -> None:
        self.limiter.resume()

    async def drain(self, timeout: float | None) -> Drained:
        return await self.limiter.drain(timeout)

    async def set_weight_version(self, version: str | None) -> None:
        self.sender.weight_version = version

    async def update_model_list(self, model_list: Sequence[Mapping[str, Any]]) -> None:
        replicas = make_replicas(model_list, self._registry, self.replicas.all)
        if self.spending.limits_usd:
            require_prices(replicas, self._registry)
        self.replicas.replace(replicas)

    async def flush(self, owner: Owner, end: bool) -> None:
        if end:
            self.attempts.end(owner)
            self.spending.end_attempt(owner)
        await self.outbox.flush(
            owner,
            grace_seconds=self._settings.flush_grace_seconds,
            timeout_seconds=self._settings.flush_seconds,
            end=end,
        )

    async def status(self) -> dict[str, Any]:
        return {
            **asdict(self.engine.counts),
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

    async def set_store(self, store: LightningStore) -> None:
        if self.outbox.is_busy:
            raise ProxyError("calls are on their way to the present store; flush them before it gets another one")
        self._store, self.engine.run_id = store, store.run_id
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
