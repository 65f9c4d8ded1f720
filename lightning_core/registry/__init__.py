"""Components by name: what the installed distributions offer, found through entry points."""

from lightning_core.registry.blocklist import BLOCK_VARIABLE
from lightning_core.registry.component import ALIASES, KINDS, SHIPS_IN, Component, Kind, State
from lightning_core.registry.objects import did_you_mean, load_object, nearest
from lightning_core.registry.registration import Registration
from lightning_core.registry.registry import Registry, default_registry

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
