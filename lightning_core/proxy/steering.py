"""What a running proxy can be told, wherever it runs."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from lightning_core.errors import ProxyError
from lightning_core.proxy.owner import Owner
from lightning_core.proxy.traffic import Drained


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
