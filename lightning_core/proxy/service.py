"""A proxy in its event loop: all of its parts, from its start to its stop."""

import asyncio
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from lightning_core.proxy.app import ProxyApp
from lightning_core.proxy.budget import Budget
from lightning_core.proxy.control import Control
from lightning_core.proxy.engine import Engine
from lightning_core.proxy.live_attempts import LiveAttempts
from lightning_core.proxy.model_list import Replica, make_replicas
from lightning_core.proxy.outbox import Outbox
from lightning_core.proxy.owner import Attribution, Owner
from lightning_core.proxy.replicas import Replicas
from lightning_core.proxy.sending import Sender
from lightning_core.proxy.spans import Capture
from lightning_core.proxy.traffic import Traffic
from lightning_core.registry import Registry
from lightning_core.store import LightningStore
from lightning_core.store.clock import Clock
from lightning_core.store.http.auth import Keys
from lightning_core.store.http.listener import Listener, bind

_MAX_VIEWS = 256
_STOP_SECONDS = 5.0
"""How long calls may go on when the proxy stops, and how long it then waits for the store."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The limits of a proxy. Seconds are real ones, unless a test brings its own clock."""

    allow_unattributed: bool = False
    attribution_header: str | None = None
    num_retries: int = 2
    first_retry_seconds: float = 0.25
    max_concurrent_calls: int = 4096
    max_waiting_calls: int = 16_384
    queue_seconds: float = 300.0
    pause_seconds: float = 60.0
    stall_seconds: float = 120.0
    flush_grace_seconds: float = 1.0
    flush_seconds: float | None = 30.0
    max_body_bytes: int = 64 * 1024 * 1024
    max_unsent_spans: int = 20_000
    max_unsent_bytes: int = 512 * 1024 * 1024


class ProxyService:
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
        self._views: OrderedDict[str, LightningStore] = OrderedDict()
        self._closing: set[asyncio.Task[None]] = set()
        self._listener: Listener | None = None
        self.attribution = Attribution(keys, header=settings.attribution_header)
        self.attempts = LiveAttempts(self._view, clock)
        self.outbox = Outbox(
            self._view, clock, max_spans=settings.max_unsent_spans, max_bytes=settings.max_unsent_bytes
        )
        self.traffic = Traffic(
            clock,
            max_calls=settings.max_concurrent_calls,
            max_waiting=settings.max_waiting_calls,
            queue_seconds=settings.queue_seconds,
            pause_seconds=settings.pause_seconds,
        )
        self.replicas = Replicas(clock, self._retire)
        self.engine = Engine(
            attribution=self.attribution,
            attempts=self.attempts,
            outbox=self.outbox,
            traffic=self.traffic,
            replicas=self.replicas,
            sender=Sender(
                self.replicas, retries=settings.num_retries, first_pause_seconds=settings.first_retry_seconds
            ),
            capture=capture,
            budget=budget,
            allow_unattributed=settings.allow_unattributed,
            max_body_bytes=settings.max_body_bytes,
        )
        self.app = ProxyApp(
            self.engine,
            Control(self, has_keys=keys.required),
            self.attribution,
            run_id=None if store is None else store.run_id,
            local_only=not keys.required,
            stall_seconds=settings.stall_seconds,
        )

    async def start(self, host: str, port: int) -> int:
        """Listen, and return the port when requests are answered.

        Raises:
            ConfigError: When the port cannot be had.
        """
        bound = bind(host, port)
        found: int = bound.getsockname()[1]
        listener = Listener(self.app, bound)
        await listener.open()
        self._listener = listener
        return found

    async def stop(self) -> None:
        """Let calls end, bring their spans to the store, and let go of everything."""
        listener, self._listener = self._listener, None
        self.traffic.resume()
        if listener is not None:
            await listener.close(seconds=_STOP_SECONDS)
        await self.outbox.aclose(_STOP_SECONDS)
        self.replicas.replace([])
        while self._closing:
            await asyncio.wait(self._closing)

    def update_model_list(self, model_list: Sequence[Mapping[str, Any]]) -> None:
        """Send calls to other replicas from now on. Those that have not changed keep their connections.

        Raises:
            ConfigError: When an entry is wrong; then nothing changes.
            RegistryError: When a backend cannot be had; then nothing changes.
        """
        self.replicas.replace(make_replicas(model_list, self._registry, self.replicas.all))

    async def flush(self, owner: Owner, *, end: bool) -> None:
        """Return when the store has the calls of an attempt.

        Args:
            owner: The attempt.
            end: Whether it has ended: calls under way are cut off after a moment, and no other one begins.

        Raises:
            StoreUnavailable: When the store did not take them in time.
        """
        if end:
            self.attempts.end(owner)
        await self.outbox.flush(
            owner,
            grace_seconds=self._settings.flush_grace_seconds,
            timeout_seconds=self._settings.flush_seconds,
        )

    def status(self) -> dict[str, Any]:
        """Return how it stands."""
        return {
            **asdict(self.engine.counts),
            "in_flight": self.traffic.in_flight,
            "waiting": self.traffic.waiting,
            "is_paused": self.traffic.is_paused,
            "unsent_spans": self.outbox.unsent,
            "lost_spans": self.outbox.lost,
            "weight_version": self.engine.weight_version,
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
