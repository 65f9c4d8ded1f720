"""Config files: from a file to a trainer that is ready to go."""

from lightning_core.config.datasets import load_dataset
from lightning_core.config.model import Config, Job, load_job

__all__ = ["Config", "Job", "load_dataset", "load_job"]
