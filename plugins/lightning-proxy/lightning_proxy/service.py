"""The parts of a proxy, and what can be done with them while it runs."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from lightning_http.auth import Keys

from lightning_core.budget import Budget
from lightning_core.errors import ProxyError
from lightning_core.registry import Registry
from lightning_core.store import LightningStore
from lightning_core.store.clock import Clock
from lightning_proxy.admit import Limiter, Spending, UsageSoFar
from lightning_proxy.apis.responses import StoredResponses
from lightning_proxy.models import Models, make_replicas, require_prices
from lightning_proxy.outbox import Outbox
from lightning_proxy.owner import Attribution, LiveAttempts, Owner
from lightning_proxy.paths import OpenPaths
from lightning_proxy.replicas import Replica, Replicas
from lightning_proxy.send import Sender
from lightning_proxy.settings import Settings
from lightning_proxy.spans import Capture

_MAX_VIEWS = 256


@dataclass(slots=True)
class Counts:
    """What went through so far."""

    calls: int = 0
    failed: int = 0
    refused: int = 0
    hung_up: int = 0
    tokens: int = 0
    usd: float = 0.0


class ProxyService:
    """The parts of a running proxy. Belongs to one event loop.

    Args:
        store: Where calls are recorded; None to record none.
        keys: Who may do what.
        settings: Its limits.
        capture: What is recorded of what was said.
        budget: The run's; None for no limit.
        registry: Where backends are found.
        clock: How long pauses last, and waits for the store and for backends.
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
        self._store, self._budget, self._registry = store, budget, registry
        self._views: dict[str, LightningStore] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self.run_id = None if store is None else store.run_id
        """The proxy's own run; None without a store."""
        self.settings, self.capture, self.counts = settings, capture, Counts()
        self.has_keys = keys.required
        """Whether callers need a key. Without one, only this machine may call."""
        self.attribution = Attribution(keys, header=settings.attribution_header)
        self.attempts = LiveAttempts(self._view, clock)
        self.outbox = Outbox(self._view, clock)
        self.limiter = Limiter(clock, settings)
        self.spending, self.usage = Spending(budget, settings.attempt_limits), UsageSoFar()
        self.replicas, self.models = Replicas(clock, self._retire), Models(settings.models)
        self.open_paths, self.responses = OpenPaths(settings.allow_paths), StoredResponses()
        self.sender = Sender(self.replicas, self.models, self.limiter, clock, settings)

    async def aclose(self, seconds: float) -> None:
        """Bring what calls recorded to the store, for so many seconds at most, and close all parts."""
        await self.attempts.aclose()
        await self.outbox.aclose(seconds)
        self.replicas.replace([])
        while self._closing:
            await asyncio.wait(self._closing)

    def require_prices(self) -> None:
        """Check that the price of each model is known where money is limited.

        Raises:
            ConfigError: Names a model whose price is not.
        """
        if self.spending.limits_usd:
            require_prices(self.replicas.all, self._registry)

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
        await self.outbox.flush(owner, end=end)

    def status(self) -> dict[str, Any]:
        """Return how it stands."""
        return {
            **asdict(self.counts),
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
        self._store, self.run_id = store, store.run_id
        self._views.clear()

    def _view(self, run_id: str | None) -> LightningStore:
        assert self._store is not None  # calls of an attempt are served only where there is a store
        if run_id is None or run_id == self._store.run_id:
            return self._store
        if run_id not in self._views:
            if len(self._views) >= _MAX_VIEWS:
                self._views.clear()
            self._views[run_id] = self._store.for_run(run_id)
        return self._views[run_id]

    def _retire(self, replica: Replica) -> None:
        if replica.is_owned:
            task = asyncio.get_running_loop().create_task(replica.backend.aclose())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)
