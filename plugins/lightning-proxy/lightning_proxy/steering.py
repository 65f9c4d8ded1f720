"""What a running proxy can be told, wherever it runs."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Self

from lightning_http.connection_limits import ConnectionLimits, Seconds
from pydantic import Field, NonNegativeInt, PositiveInt

from lightning_core.errors import ProxyError
from lightning_proxy.limiter import Drained
from lightning_proxy.owner import Owner
from lightning_proxy.replicas import Placing
from lightning_proxy.spending import Spending


class CallsLost(ProxyError):
    """Calls of an attempt are gone: the process that answered them has died, or the store cannot keep them."""


class Steering(ABC):
    """Steers a proxy: that of this event loop, the workers of one, or from a worker all of them."""

    @abstractmethod
    async def pause(self, seconds: float | None = None) -> None:
        """Let no new call in. Twice is as once.

        Args:
            seconds: How long a call that comes from now on waits for the end; None for as long as usual.
        """

    @abstractmethod
    async def resume(self) -> None:
        """Let calls in again."""

    @abstractmethod
    async def drain(self, timeout: float | None) -> Drained:
        """Wait until no call is under way; cut off those that are after so many seconds."""

    @abstractmethod
    async def set_weight_version(self, version: str | None) -> None:
        """Record another version of the weights with each call from now on."""

    @abstractmethod
    async def update_model_list(self, model_list: Sequence[Mapping[str, Any]]) -> None:
        """Send calls to other replicas from now on. Those that have not changed keep their connections.

        Raises:
            ConfigError: When an entry is wrong; then nothing changes.
            RegistryError: When a backend cannot be had; then nothing changes.
        """

    @abstractmethod
    async def bind(self, value: str, owner: Owner) -> None:
        """Let a value of the attribution header, or the trace id of a `traceparent`, stand for an attempt."""

    @abstractmethod
    async def flush(self, owner: Owner, *, end: bool) -> None:
        """Return when the store has the calls of an attempt.

        Args:
            owner: The attempt.
            end: Whether it has ended: calls under way are cut off after a moment, and no other one begins. Otherwise
                they go on, and it is not waited for those that do.

        Raises:
            StoreUnavailable: When the store did not take them in time.
            CallsLost: When calls of it are gone for good.
        """

    @abstractmethod
    async def status(self) -> dict[str, Any]:
        """Return how it stands."""

    @abstractmethod
    async def budget_beyond(self, refusals: int, seconds: float) -> dict[str, Any] | None:
        """Return how the budget stands as soon as it has refused more calls than these; None without a budget.

        Args:
            refusals: How many are known.
            seconds: After these it is returned in any case.
        """


class Serving(Steering):
    """A proxy that can be started and stopped."""

    @abstractmethod
    async def start(self, host: str, port: int) -> int:
        """Listen, and return the port when requests are answered.

        Raises:
            ConfigError: When the port cannot be had.
        """

    @abstractmethod
    async def stop(self) -> None:
        """Let calls end, bring their spans to the store, and let go of everything."""


Wait = Annotated[float, Field(ge=0, allow_inf_nan=False)]
"""Seconds; 0 for no wait."""


@dataclass(frozen=True)
class Settings(ConnectionLimits):
    """The limits of a proxy. Seconds are real ones, unless a test brings its own clock."""

    allow_unattributed: bool = False
    allow_paths: Sequence[str] = ()
    attribution_header: str | None = None
    num_retries: NonNegativeInt = 2
    first_retry_seconds: Wait = 0.25
    max_concurrent_calls: PositiveInt = 4096
    max_waiting_calls: NonNegativeInt = 16_384
    queue_seconds: Wait = 300.0
    pause_seconds: Wait = 60.0
    stall_seconds: Seconds = 120.0
    flush_grace_seconds: Wait = 1.0
    flush_seconds: Wait | None = 30.0
    max_incoming_bytes: PositiveInt = 512 * 1024 * 1024
    max_unsent_spans: PositiveInt = 20_000
    max_unsent_bytes: PositiveInt = 512 * 1024 * 1024

    def share_of(self, workers: int) -> Self:
        """Return the limits of one of so many workers; together they go over these by less than one each."""
        return replace(
            self,
            max_concurrent_calls=-(-self.max_concurrent_calls // workers),
            max_waiting_calls=-(-self.max_waiting_calls // workers),
            max_incoming_bytes=-(-self.max_incoming_bytes // workers),
            max_unsent_spans=-(-self.max_unsent_spans // workers),
            max_unsent_bytes=-(-self.max_unsent_bytes // workers),
        )


@dataclass(frozen=True, slots=True)
class Links:
    """Leads to what all workers of a proxy have in common."""

    steering: Steering
    """Steers all of them."""
    spending: Spending | None
    """The budget; None for no limit."""
    placing: Placing
    on_attempt: Callable[[Owner, bool], None]
    """Is told of an attempt that has calls here which the store does not have yet, and (False) of one that has none any
    more."""
