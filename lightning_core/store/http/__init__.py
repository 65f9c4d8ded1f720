"""A store over HTTP: the server around any store, and the client that is a store. Nothing is imported before use."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightning_core.store.http.client import LightningStoreClient as LightningStoreClient
    from lightning_core.store.http.server import LightningStoreServer as LightningStoreServer

__all__ = ["LightningStoreClient", "LightningStoreServer"]

_HOMES = {"LightningStoreClient": "client", "LightningStoreServer": "server"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
