"""Config files: from a file to a trainer that is ready to go."""

from lightning_core.config.datasets import load_dataset
from lightning_core.config.hub import Hub
from lightning_core.config.job import Job, load_job
from lightning_core.config.model import Config
from lightning_core.config.resolved import resolved_config, resolved_values

__all__ = ["Config", "Hub", "Job", "load_dataset", "load_job", "resolved_config", "resolved_values"]
