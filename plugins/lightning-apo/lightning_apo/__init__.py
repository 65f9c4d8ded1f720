"""Automatic prompt optimisation for Lightning Core."""

from lightning_apo.apo import APO
from lightning_apo.candidate import Result
from lightning_apo.plan import Plan

__all__ = ["APO", "Plan", "Result"]
