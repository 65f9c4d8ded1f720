"""Automatic prompt optimisation for Lightning Core."""

from lightning_apo.apo import APO

__all__ = ["APO"]
