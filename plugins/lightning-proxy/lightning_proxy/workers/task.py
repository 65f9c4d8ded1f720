"""What a worker gets from the process that started it, and what cannot be sent: an object of this process."""

import io
import pickle
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lightning_core.errors import (
    AttemptLimitReached,
    BudgetExhausted,
    ConfigError,
    LightningError,
    ProxyError,
    RegistryError,
    StoreUnavailable,
)
from lightning_core.store import LightningStore
from lightning_proxy.backend import Backend
from lightning_proxy.control import CallsLost, Settings
from lightning_proxy.owner import Owner
from lightning_proxy.spans import Capture


@dataclass(frozen=True, slots=True)
class Task:
    """The same for all workers, and for those that replace them."""

    store: LightningStore | None
    """A client of the store's server; None to record nothing."""
    key: str | None = field(repr=False)
    settings: Settings
    """Of one worker."""
    capture: Capture
    has_limits: bool
    """Whether a budget or limits of attempts count calls."""


@dataclass(slots=True)
class State:
    """The changes since the start; a worker that starts later gets all of them."""

    model_list: Sequence[Mapping[str, Any]] = ()
    list_version: int = 1
    weight_version: str | None = None
    is_paused: bool = False
    pause_seconds: float | None = None
    """How long calls wait for the end of the pause; None for as long as usual."""
    bound: dict[str, Owner] = field(default_factory=dict)


ERRORS: tuple[type[LightningError], ...] = (
    AttemptLimitReached,
    BudgetExhausted,
    CallsLost,
    ConfigError,
    RegistryError,
    StoreUnavailable,
    ProxyError,
)
"""What may be raised at the other end of a channel; anything else is a `ProxyError` there. A subclass stands before its
base."""


def packed_task(task: Task) -> bytes:
    """Return the task as bytes.

    Raises:
        ConfigError: When `redact` cannot be had in another process.
    """
    return _packed("redact", task)


def require_sendable(model_list: Sequence[Mapping[str, Any]]) -> None:
    """Check that workers can have a model list.

    Raises:
        ConfigError: Names the entry that they cannot, and why.
    """
    for number, entry in enumerate(model_list):
        name = f"model_list[{number}] ({entry.get('model_name')})"
        backend = entry.get("backend")
        if isinstance(backend, Backend):
            raise ConfigError(
                f"{name}: its backend is an object of this process ({type(backend).__name__}), and a proxy with "
                "several workers answers calls in others; leave workers out, or name the backend: an installed one, or "
                "'package.module:Class'"
            )
        _packed(name, entry)


class _Pickler(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, types.FunctionType | type) and obj.__module__ == "__main__":
            raise pickle.PicklingError(f"{obj.__qualname__!r} is defined in the program itself")
        return NotImplemented


def _packed(what: str, value: object) -> bytes:
    buffer = io.BytesIO()
    try:
        _Pickler(buffer, protocol=pickle.HIGHEST_PROTOCOL).dump(value)
    except (pickle.PicklingError, TypeError, AttributeError) as exc:
        raise ConfigError(
            f"{what} cannot be sent to the proxy's workers: {exc}; define it at the top level of a module that can be "
            "imported, or leave workers out"
        ) from exc
    return buffer.getvalue()
