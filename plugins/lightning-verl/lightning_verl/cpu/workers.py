"""verl's training workers, with a process group that the processor has."""

import os
from collections.abc import Callable
from typing import Any

import torch.distributed
from verl.experimental.separation.engine_workers import DetachActorWorker
from verl.workers.engine_workers import ActorRolloutRefWorker, TrainingWorker, TrainingWorkerConfig

# A critic's worker gets its model's config ready-made, and so imports no `external_lib`.
import lightning_verl.cpu.engines  # noqa: F401


class CpuTrainingWorker(TrainingWorker):  # type: ignore[misc]
    """Trains one model. verl would ask for the backends `cpu:gloo,cpu:gloo`, which torch refuses as a duplicate."""

    def __init__(self, config: TrainingWorkerConfig) -> None:
        if not torch.distributed.is_initialized():
            # verl leaves a group alone that is there.
            torch.distributed.init_process_group(
                "cpu:gloo",
                rank=int(os.environ["RANK"]),
                world_size=int(os.environ["WORLD_SIZE"]),
                init_method=os.environ.get("DIST_INIT_METHOD"),
            )
        super().__init__(config)


class CpuActorRolloutRefWorker(ActorRolloutRefWorker):  # type: ignore[misc]
    """Holds the actor and the reference, and sends weights to where text is generated."""

    actor_worker_cls = CpuTrainingWorker
    ref_worker_cls = CpuTrainingWorker


class CpuDetachActorWorker(DetachActorWorker):  # type: ignore[misc]
    """The same, for the mode `separate_async`."""

    actor_worker_cls = CpuTrainingWorker
    ref_worker_cls = CpuTrainingWorker

    @property
    def copy_handler(self) -> Callable[[torch.nn.Module], Any]:
        """Return what keeps a model's weights for later: a copy. What verl's keeps would be their own memory here."""
        keep = super().copy_handler
        return lambda module: _copied(keep(module))


def _copied(kept: Any) -> Any:
    match kept:
        case torch.Tensor():
            return kept.clone()
        case dict():
            return {name: _copied(each) for name, each in kept.items()}
        case tuple():
            return tuple(map(_copied, kept))
        case _:
            return kept
