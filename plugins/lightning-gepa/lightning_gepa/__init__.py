"""The algorithm `gepa`: reflective prompt evolution, by the package `gepa`, on Lightning Core's runners."""

from lightning_gepa.algorithm import GEPA

__all__ = ["GEPA"]
