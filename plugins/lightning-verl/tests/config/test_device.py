import importlib.machinery
import importlib.util

import lightning_verl.config as settings_of
import pytest
from lightning_verl.config import load_settings
from omegaconf import OmegaConf

CPU = {"agentlightning.device": "cpu"}
GPU = {"agentlightning.device": "cuda"}


ROLLOUT = "actor_rollout_ref.rollout"
ATTENTION = "actor_rollout_ref.model.override_config.attn_implementation"
EXTERNAL = "actor_rollout_ref.model.external_lib"
LORA = "actor_rollout_ref.model.lora.merge"


@pytest.mark.parametrize(
    ("config", "key", "value"),
    [
        (CPU, "trainer.device", "cpu"),
        (CPU, "trainer.n_gpus_per_node", 1),
        (CPU, "ray_kwargs.ray_init.num_gpus", 1),
        (CPU, "ray_kwargs.ray_init.num_cpus", 16),
        (CPU, f"{ROLLOUT}.name", "hf"),
        (CPU, f"{ROLLOUT}.dtype", "float32"),
        (CPU, ATTENTION, "sdpa"),
        (CPU, EXTERNAL, "lightning_verl.workers"),
        (CPU, "actor_rollout_ref.actor.strategy", "fsdp2"),
        (CPU, "actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype", "fp32"),
        (CPU, "actor_rollout_ref.actor.use_torch_compile", False),
        (CPU, "actor_rollout_ref.ref.strategy", "fsdp2"),
        (CPU, "critic.model.override_config.attn_implementation", "sdpa"),
        (CPU, "transfer_queue.backend.SimpleStorage.num_data_storage_units", 1),
        (CPU, LORA, False),
        ({**CPU, "actor_rollout_ref.model.lora_rank": 8}, LORA, True),
        ({"actor_rollout_ref.model.lora_rank": 8}, LORA, False),
        ({**CPU, "trainer.n_gpus_per_node": 2}, "ray_kwargs.ray_init.num_gpus", 2),
        ({**CPU, ATTENTION: "eager"}, ATTENTION, "eager"),
        ({**CPU, "critic.strategy": "fsdp"}, "critic.strategy", "fsdp"),
        ({"trainer.device": "cpu"}, f"{ROLLOUT}.name", "hf"),
        ({}, f"{ROLLOUT}.name", "vllm"),
        ({}, f"{ROLLOUT}.dtype", "bfloat16"),
        (GPU, "trainer.device", "cuda"),
        (GPU, f"{ROLLOUT}.tensor_model_parallel_size", 1),
        (GPU, "actor_rollout_ref.actor.strategy", "fsdp2"),
        (GPU, "actor_rollout_ref.actor.fsdp_config.strategy", "fsdp2"),
        (GPU, "critic.strategy", "fsdp2"),
        ({EXTERNAL: "mine"}, EXTERNAL, ["lightning_verl.workers", "mine"]),
        ({EXTERNAL: "mine"}, "critic.model.external_lib", "lightning_verl.workers"),
    ],
)
def test_one_key_sets_all_that_a_device_needs_but_what_the_user_sets(config, key, value):
    assert OmegaConf.select(load_settings(config, preset="grpo").verl, key) == value


def test_verls_own_key_of_a_device_means_the_same():
    assert load_settings(["trainer.device=cpu"]).own.device == "cpu"


@pytest.mark.parametrize("is_there", [True, False])
def test_attention_is_torchs_own_where_flash_attn_is_not_installed(monkeypatch, is_there):
    found = importlib.util.find_spec
    flash = importlib.machinery.ModuleSpec("flash_attn", None) if is_there else None
    monkeypatch.setattr(settings_of, "find_spec", lambda name: flash if name == "flash_attn" else found(name))
    model = load_settings(GPU).verl.actor_rollout_ref.model
    assert model.use_remove_padding, "micro-batches of 16k tokens would be padded to several times as many"
    assert model.override_config.get("attn_implementation") == (None if is_there else "sdpa")
