"""verl's training workers, with a process group that the processor has."""

import os

import torch.distributed
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
