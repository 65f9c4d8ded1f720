"""Event files of TensorBoard, by tensorboardX."""

import os
from collections.abc import Mapping
from typing import Any

from lightning_core.errors import InvalidComponent
from lightning_core.runs.loggers import RunLogger


class TensorBoardLogger(RunLogger):
    """Writes event files, which `tensorboard --logdir tensorboard` shows; mean and interval of rewards in one chart.

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

    def open(self, run_id: str) -> None:
        self._writer = self._make(os.path.join(self._log_dir, run_id))
        self._writer.add_custom_scalars_marginchart(["reward/mean", "reward/low", "reward/high"], title="reward")

    def write(self, scalars: Mapping[str, float], step: int) -> None:
        for name, value in scalars.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self, status: str) -> None:
        self._writer.close()
