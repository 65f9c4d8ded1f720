"""The trainer: puts the parts together, and runs them."""

from lightning_core.trainer.trainer import Trainer

__all__ = ["Trainer"]
