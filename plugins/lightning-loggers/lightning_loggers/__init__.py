"""What a run measures, in TensorBoard and in Weights & Biases."""

from lightning_loggers.tensorboard import TensorBoardLogger
from lightning_loggers.wandb import WandbLogger

__all__ = ["TensorBoardLogger", "WandbLogger"]
