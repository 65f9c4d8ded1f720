"""Runners on a Ray cluster."""

from lightning_ray.strategy import RayStrategy

__all__ = ["RayStrategy"]
