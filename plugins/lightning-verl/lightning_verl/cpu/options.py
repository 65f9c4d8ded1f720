"""What is set over verl's defaults on a processor. Imports neither verl nor torch."""

from typing import Any

from omegaconf import DictConfig

from lightning_verl.config.given import Given
from lightning_verl.config.layers import ENGINES, MODELS, WITHOUT_FLASH_ATTN

ON_CPU: dict[str, Any] = {
    "trainer.device": "cpu",
    "trainer.n_gpus_per_node": 1,
    # verl counts accelerators only, so some are pretended; a bundle of its pools wants three cores
    "ray_kwargs.ray_init.num_gpus": "${trainer.n_gpus_per_node}",
    "ray_kwargs.ray_init.num_cpus": 16,
    "ray_kwargs.ray_init.include_dashboard": False,
    "actor_rollout_ref.rollout.name": "hf",
    "actor_rollout_ref.rollout.dtype": "float32",
    "actor_rollout_ref.actor.use_torch_compile": False,
    "transfer_queue.backend.SimpleStorage.num_data_storage_units": 1,
    **WITHOUT_FLASH_ATTN,
    **{f"{model}.enable_gradient_checkpointing": False for model in MODELS},
    **{f"{model}.external_lib": "lightning_verl.cpu.workers" for model in MODELS},
    **{f"{engine}.use_torch_compile": False for engine in ENGINES},
    **{f"{engine}.mixed_precision.param_dtype": "fp32" for engine in ENGINES},
    **{f"{engine}.dtype": "float32" for engine in ENGINES},
}
"""Everything that verl needs to train on a CPU, and the little that keeps it small."""

SEPARATE_ON_CPU: dict[str, Any] = {
    "actor_rollout_ref.rollout.nnodes": 1,
    "actor_rollout_ref.rollout.n_gpus_per_node": 1,
    "actor_rollout_ref.rollout.checkpoint_engine.backend": "ray_objects",
    "actor_rollout_ref.rollout.checkpoint_engine.custom_backend_module": "lightning_verl.cpu.channel",
}
"""What the mode `separate_async` needs besides: a generating process of its own, and a way for weights to it."""


def count_workers(config: DictConfig, given: Given) -> None:
    """Have Ray pretend as many GPUs and cores as verl asks for, unless they are set: three cores for each worker."""
    trainer, rollout, ray = (config.trainer, config.actor_rollout_ref.rollout, config.ray_kwargs.ray_init)
    training, generating = trainer.nnodes * trainer.n_gpus_per_node, 0
    if trainer.v1.trainer_mode == "separate_async":
        generating = rollout.nnodes * rollout.n_gpus_per_node
    if not given.has("ray_kwargs.ray_init.num_gpus"):
        ray.num_gpus = training + generating
    if not given.has("ray_kwargs.ray_init.num_cpus"):
        ray.num_cpus += 3 * (training - 1) + 2 * generating
