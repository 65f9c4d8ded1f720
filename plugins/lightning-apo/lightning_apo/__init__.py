"""Automatic prompt optimisation for Lightning Core."""

from lightning_apo.apo import APO
from lightning_apo.plan import Plan
from lightning_apo.result import Result

__all__ = ["APO", "Plan", "Result"]
