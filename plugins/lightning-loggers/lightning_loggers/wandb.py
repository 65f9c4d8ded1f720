"""Runs of Weights & Biases."""

from collections.abc import Mapping
from typing import Any

from lightning_core.errors import InvalidComponent
from lightning_core.runs.loggers import RunLogger


class WandbLogger(RunLogger):
    """Sends each run to Weights & Biases, under its own id: one that is taken up again goes on there, too.

    Args:
        project: The project there.
        options: What else `wandb.init` takes, such as `mode: offline`, which needs no account, or `entity`.

    Raises:
        InvalidComponent: Without wandb.
    """

    def __init__(self, project: str = "lightning", **options: Any) -> None:
        super().__init__()
        try:
            import wandb  # late: it takes a second
        except ImportError as exc:
            raise InvalidComponent(f"logger 'wandb' needs wandb ({exc}); pip install wandb") from exc
        self._init = wandb.init
        self._options = {"project": project, "resume": "allow", **options}

    def open(self, run_id: str) -> None:
        self._run = self._init(**{"id": run_id, "name": run_id, **self._options})

    def write(self, scalars: Mapping[str, float], step: int) -> None:
        self._run.log(dict(scalars), step=step)

    def close(self, status: str) -> None:
        self._run.summary["status"] = status
        self._run.finish(exit_code=0 if status in ("succeeded", "budget") else 1)
