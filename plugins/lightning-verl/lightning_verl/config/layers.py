"""What is set over verl's defaults before a user sets anything."""

from typing import Any

ALWAYS: dict[str, Any] = {
    # The number of rows differs from step to step, so micro-batches are made by tokens
    "actor_rollout_ref.actor.use_dynamic_bsz": True,
    # For the difference to what the actor says, and the correction of it
    "actor_rollout_ref.rollout.calculate_log_probs": True,
    "actor_rollout_ref.rollout.name": "vllm",
    "actor_rollout_ref.rollout.tensor_model_parallel_size": 1,  # verl's 2 needs two GPUs
    "reward.num_workers": 0,  # the agent gives the reward
    "critic.model.path": "${actor_rollout_ref.model.path}",
    "critic.model.tokenizer_path": "${actor_rollout_ref.model.tokenizer_path}",
    "critic.model.trust_remote_code": "${actor_rollout_ref.model.trust_remote_code}",
    "trainer.logger": [],
    # What was learned is kept: verl saves the last step, too, where it saves any; the others are saved by time
    "trainer.save_freq": 1_000_000_000,
    "trainer.test_freq": 1_000_000_000,  # verl validates after the last step, too, where it validates after any
    "trainer.default_local_dir": "checkpoints",
}

_TRAJECTORIES: dict[str, Any] = {"agentlightning.trace_aggregator.level": "trajectory"}

PRESETS: dict[str, dict[str, Any]] = {
    "grpo": {**_TRAJECTORIES, "algorithm.adv_estimator": "grpo", "actor_rollout_ref.rollout.n": 4},
    "rloo": {**_TRAJECTORIES, "algorithm.adv_estimator": "rloo", "actor_rollout_ref.rollout.n": 4},
    "ppo": {**_TRAJECTORIES, "algorithm.adv_estimator": "gae", "actor_rollout_ref.rollout.n": 1},
}
"""By name, what is set together, by dotted key."""

_MODELS = ("actor_rollout_ref.model", "critic.model")
_ENGINES = ("actor_rollout_ref.actor.fsdp_config", "actor_rollout_ref.ref.fsdp_config", "critic.fsdp")

WITH_FSDP: dict[str, Any] = {
    "actor_rollout_ref.actor.strategy": "fsdp2",
    "critic.strategy": "fsdp2",
    **{f"{engine}.strategy": "fsdp2" for engine in _ENGINES},
}
"""What is set where verl's engine is FSDP, on any device: its second version."""

HF_REGISTERED: dict[str, Any] = {"actor_rollout_ref.model.external_lib": "lightning_verl.hf.register"}
"""What makes our own generating process known to verl on a GPU."""

WITHOUT_FLASH_ATTN: dict[str, Any] = {
    **{f"{model}.use_remove_padding": False for model in _MODELS},
    **{f"{model}.override_config.attn_implementation": "sdpa" for model in _MODELS},
}
"""What trains with torch's own attention: flash-attn has no wheel for the newest torch."""

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
    **{f"{model}.enable_gradient_checkpointing": False for model in _MODELS},
    **{f"{model}.external_lib": "lightning_verl.external" for model in _MODELS},
    **{f"{engine}.use_torch_compile": False for engine in _ENGINES},
    **{f"{engine}.mixed_precision.param_dtype": "fp32" for engine in _ENGINES},
    **{f"{engine}.dtype": "float32" for engine in _ENGINES},
}
"""Everything that verl needs to train on a CPU, and the little that keeps it small."""

SEPARATE_ON_CPU: dict[str, Any] = {
    "actor_rollout_ref.rollout.nnodes": 1,
    "actor_rollout_ref.rollout.n_gpus_per_node": 1,
    "actor_rollout_ref.rollout.checkpoint_engine.backend": "ray_objects",
    "actor_rollout_ref.rollout.checkpoint_engine.custom_backend_module": "lightning_verl.cpu.channel",
}
"""What the mode `separate_async` needs besides: a generating process of its own, and a way for weights to it."""

IMPOSSIBLE_ON_CPU: dict[str, tuple[tuple[Any, ...], str]] = {
    "trainer.device": (("cpu",), "the device is the CPU"),
    "actor_rollout_ref.rollout.name": (("hf",), "the other servers need an accelerator"),
    "actor_rollout_ref.actor.strategy": (("fsdp", "fsdp2"), "the other engines need an accelerator"),
    "critic.strategy": (("fsdp", "fsdp2"), "the other engines need an accelerator"),
    **{f"{model}.use_remove_padding": ((False,), "it needs flash-attn") for model in _MODELS},
    **{
        f"{model}.override_config.attn_implementation": (("sdpa", "eager"), "the others need an accelerator")
        for model in _MODELS
    },
}
"""By key, what it can be on a CPU, and why nothing else."""
