"""What a run measures, in TensorBoard and in Weights & Biases."""

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning_core.errors import InvalidComponent
from lightning_core.runs.loggers import RunLogger
from lightning_core.runs.manifest import write_atomically


class TensorBoardLogger(RunLogger):
    """Writes event files, which `tensorboard --logdir tensorboard` shows; mean and interval of rewards in one chart.

    A run that is resumed writes no step that was written before; the file `last-step` keeps which was the last.

    Args:
        log_dir: Where each run gets a folder, named by its id.

    Raises:
        InvalidComponent: Without tensorboardX.
    """

    def __init__(self, log_dir: str | os.PathLike[str] = "tensorboard") -> None:
        super().__init__()
        try:
            from tensorboardX import SummaryWriter  # late: numpy takes time
        except ImportError as exc:
            raise InvalidComponent(
                f"logger 'tensorboard' needs tensorboardX ({exc}); pip install tensorboardX"
            ) from exc
        self._make: Any = SummaryWriter
        self._log_dir = log_dir
        self._writer: Any = None

    def open(self, run_id: str) -> None:
        self._folder = os.path.join(self._log_dir, run_id)
        os.makedirs(self._folder, exist_ok=True)
        self._last_step = Path(self._folder, "last-step")
        self._written_before = int(self._last_step.read_text()) if self._last_step.exists() else -1

    def write(self, scalars: Mapping[str, float], step: int) -> None:
        if step <= self._written_before:  # a run that is resumed goes through ended steps again, knowing less of them
            return
        if self._writer is None:
            # Without the suffix it might write over the file of the same second.
            self._writer = self._make(self._folder, filename_suffix=f".{time.time_ns()}")
            self._writer.add_custom_scalars_marginchart(["reward/mean", "reward/low", "reward/high"], title="reward")
        for name, value in scalars.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()
        write_atomically(self._last_step, str(step))

    def close(self, status: str) -> None:
        if self._writer is not None:
            self._writer.close()


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
