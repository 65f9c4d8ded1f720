"""Where rollouts, attempts, spans, resources, workers and saved state are kept."""

from lightning_core.store.base import (
    UNSET,
    LightningStore,
    LightningStoreCapabilities,
    LightningStoreStatistics,
    Unset,
)
from lightning_core.store.facade import StoreFacade
from lightning_core.store.memory import InMemoryLightningStore
from lightning_core.store.threaded import LightningStoreThreaded

__all__ = [
    "UNSET",
    "InMemoryLightningStore",
    "LightningStore",
    "LightningStoreCapabilities",
    "LightningStoreStatistics",
    "LightningStoreThreaded",
    "StoreFacade",
    "Unset",
]
