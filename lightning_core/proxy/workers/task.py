"""What a worker is given to begin with."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lightning_core.proxy.owner import Owner
from lightning_core.proxy.settings import Settings
from lightning_core.proxy.spans import Capture
from lightning_core.store import LightningStore


@dataclass(frozen=True, slots=True)
class Task:
    """The same for all workers, and for those that replace them."""

    store: LightningStore | None
    """A client of the store's server; None to record nothing."""
    key: str | None = field(repr=False)
    settings: Settings
    """Of one worker."""
    capture: Capture
    has_budget: bool


@dataclass(slots=True)
class State:
    """What was said since the start; a worker that comes later is told all of it."""

    model_list: Sequence[Mapping[str, Any]] = ()
    list_version: int = 1
    weight_version: str | None = None
    is_paused: bool = False
    pause_seconds: float | None = None
    """How long calls wait for the end of the pause; None for as long as usual."""
    bound: dict[str, Owner] = field(default_factory=dict)
