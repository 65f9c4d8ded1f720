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

MODELS = ("actor_rollout_ref.model", "critic.model")
ENGINES = ("actor_rollout_ref.actor.fsdp_config", "actor_rollout_ref.ref.fsdp_config", "critic.fsdp")

WITH_FSDP: dict[str, Any] = {
    "actor_rollout_ref.actor.checkpoint.save_lora_only": True,  # a base that is never trained need not be saved
    "actor_rollout_ref.actor.strategy": "fsdp2",
    "critic.strategy": "fsdp2",
    **{f"{engine}.strategy": "fsdp2" for engine in ENGINES},
}
"""What is set where verl's engine is FSDP, on any device: its second version."""

HF_REGISTERED: dict[str, Any] = {"actor_rollout_ref.model.external_lib": "lightning_verl.hf.register"}
"""What makes our own generating process known to verl on a GPU."""

WITHOUT_FLASH_ATTN: dict[str, Any] = {
    **{f"{model}.use_remove_padding": False for model in MODELS},
    **{f"{model}.override_config.attn_implementation": "sdpa" for model in MODELS},
}
"""What trains with torch's own attention: flash-attn has no wheel for the newest torch."""
