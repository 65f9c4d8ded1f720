"""Components by name: what the installed distributions offer, found through entry points."""

from lightning_core.registry.building import (
    ALIASES,
    KINDS,
    SHIPS_IN,
    Component,
    Kind,
    State,
    did_you_mean,
    load_object,
    nearest,
)
from lightning_core.registry.inventory import BLOCK_VARIABLE
from lightning_core.registry.registry import Registration, Registry, default_registry

__all__ = [
    "ALIASES",
    "BLOCK_VARIABLE",
    "KINDS",
    "SHIPS_IN",
    "Component",
    "Kind",
    "Registration",
    "Registry",
    "State",
    "default_registry",
    "did_you_mean",
    "load_object",
    "nearest",
]
