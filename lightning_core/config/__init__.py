"""Config files: from a file to a trainer that is ready to go."""

from lightning_core.config.datasets import Hub, load_dataset
from lightning_core.config.job import Job, load_job, resolved_config, resolved_values
from lightning_core.config.model import Config

__all__ = ["Config", "Hub", "Job", "load_dataset", "load_job", "resolved_config", "resolved_values"]
