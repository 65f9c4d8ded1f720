"""The interface of a model proxy, as far as a run needs one. `lightning-proxy` has the implementation."""

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final

from lightning_core.budget import Budget
from lightning_core.concurrency import Startable
from lightning_core.errors import Fault, RegistryError
from lightning_core.registry import default_registry
from lightning_core.store import LightningStore
from lightning_core.types import LLM, AttemptedRollout, Resource

KEY_VARIABLE: Final = "AGL_KEY"
"""The environment variable with the key of a store's server and of its proxy."""


class ModelProxy(Startable):
    """Stands between agents and models: it attributes each call to its attempt, records it, and sends it on.

    A run starts it, unless it runs already, and gives its models to agents and algorithms. The default one is
    registered under the name `proxy` in the entry-point group `lightning_core.proxies`.
    """

    is_remote: ClassVar[bool] = False
    """Whether it runs by itself: then a run neither starts nor stops it, and it counts its own budget."""

    budget: Budget | None
    """What its calls may use; None for no limit, or for one that is counted elsewhere."""

    key: str | None
    """What the keys of attempts are made of; None where no keys are needed."""

    model_list: Sequence[Mapping[str, Any]] = ()
    """Which names lead to which models, with their prices; empty where that is not known here."""

    @classmethod
    @abstractmethod
    def from_spec(cls, spec: object, *, store: LightningStore, strategy: object) -> "ModelProxy":
        """Make the proxy of a trainer's runs, with the defaults that its store and strategy ask for.

        Args:
            spec: Options, the URL of a proxy that runs by itself, or True for the defaults.
            store: The trainer's.
            strategy: The `ExecutionStrategy`: where the runners live.

        Raises:
            ConfigError: Says what is wrong: an option, the model list, a backend.
        """

    def require_prices(self) -> None:
        """Check that the price of each model is known, because money is limited.

        Raises:
            ConfigError: Names a model whose price is not.
        """

    @staticmethod
    @abstractmethod
    async def flush_calls(
        resources: Iterable[Resource], rollout: AttemptedRollout, *, key: str | None = None, end: bool = True
    ) -> bool:
        """Return when the store has all model calls that an attempt made through proxies, wherever these run.

        Args:
            resources: The rollout's; each `ProxyLLM` says where a proxy is.
            rollout: The rollout with the attempt.
            key: The attempt's key; None for that of the resource.
            end: Whether the attempt has ended, so that no further call of it is let through.

        Returns:
            Whether there is a proxy at all.

        Raises:
            Fault: When a proxy is out of reach, or could not bring its spans to the store.
        """

    @property
    @abstractmethod
    def url(self) -> str:
        """Where agents find it; known once it runs."""

    @abstractmethod
    def is_running(self) -> bool:
        """Whether calls are served."""

    @abstractmethod
    def models(self) -> list[str]:
        """Return what agents may ask for."""

    @abstractmethod
    def set_store(self, store: LightningStore) -> None:
        """Record calls in this store from now on."""

    @abstractmethod
    def as_resource(
        self,
        rollout_id: str | None = None,
        attempt_id: str | None = None,
        model: str | None = None,
        sampling_parameters: Mapping[str, Any] | None = None,
    ) -> LLM:
        """Return what an agent is given to call a model."""

    @abstractmethod
    def attempt_key(self, rollout_id: str, attempt_id: str, *, expires: bool = True) -> str | None:
        """Return the key that opens model calls of one attempt; None where no keys are needed."""

    @abstractmethod
    async def start(self) -> None:
        """Serve calls.

        Raises:
            ConfigError: When it cannot.
        """

    @abstractmethod
    async def stop(self) -> None:
        """Serve no more calls. Idempotent."""

    async def drain(self, timeout: float | None = None) -> object:
        """Wait until no call is under way; cut off those that are after so many seconds."""
        return None

    @abstractmethod
    async def status(self) -> dict[str, Any]:
        """Return how it stands; under `budget` what was used of one."""


async def flush_calls(
    resources: Iterable[Resource], rollout: AttemptedRollout, *, key: str | None = None, end: bool = True
) -> bool:
    """Return when the store has all model calls of an attempt; see `ModelProxy.flush_calls`.

    Raises:
        Fault: When a proxy is out of reach, could not bring its spans to the store, or is not installed here.
    """
    try:
        kind: type[ModelProxy] = default_registry().load("proxies", "proxy")
    except RegistryError as exc:
        raise Fault(f"the model calls of the attempt cannot be waited for here: {exc}") from exc
    return await kind.flush_calls(resources, rollout, key=key, end=end)
