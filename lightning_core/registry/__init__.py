"""Components by name: what the installed distributions offer, found through entry points."""

from lightning_core.registry.inventory import ALIASES, KINDS, Component, Kind, State
from lightning_core.registry.options import check_options, did_you_mean, nearest
from lightning_core.registry.registry import Registration, Registry, Spec, default_registry, load_object
from lightning_core.registry.ships_in import SHIPS_IN

__all__ = [
    "ALIASES",
    "KINDS",
    "SHIPS_IN",
    "Component",
    "Kind",
    "Registration",
    "Registry",
    "Spec",
    "State",
    "check_options",
    "default_registry",
    "did_you_mean",
    "load_object",
    "nearest",
]
