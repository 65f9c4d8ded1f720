import importlib.machinery
import importlib.util

import lightning_verl.config as settings_of
import pytest
from lightning_verl.config import load_settings
from omegaconf import OmegaConf

CPU = {"agentlightning.device": "cpu"}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("trainer.device", "cpu"),
        ("trainer.n_gpus_per_node", 1),
        ("ray_kwargs.ray_init.num_gpus", 1),
        ("ray_kwargs.ray_init.num_cpus", 16),
        ("actor_rollout_ref.rollout.name", "hf"),
        ("actor_rollout_ref.rollout.dtype", "float32"),
        ("actor_rollout_ref.model.override_config.attn_implementation", "sdpa"),
        ("actor_rollout_ref.model.external_lib", "lightning_verl.workers"),
        ("actor_rollout_ref.actor.strategy", "fsdp2"),
        ("actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype", "fp32"),
        ("actor_rollout_ref.actor.use_torch_compile", False),
        ("actor_rollout_ref.ref.strategy", "fsdp2"),
        ("critic.model.override_config.attn_implementation", "sdpa"),
        ("transfer_queue.backend.SimpleStorage.num_data_storage_units", 1),
    ],
)
def test_one_key_sets_all_that_a_cpu_needs(key, value):
    assert OmegaConf.select(load_settings(CPU, preset="grpo").verl, key) == value


def test_verls_own_key_means_the_same():
    settings = load_settings(["trainer.device=cpu"])
    assert settings.own.device == "cpu"
    assert settings.verl.actor_rollout_ref.rollout.name == "hf"


def test_pretended_workers_follow_the_number_that_is_set():
    settings = load_settings({**CPU, "trainer.n_gpus_per_node": 2})
    assert settings.verl.ray_kwargs.ray_init.num_gpus == 2


def test_what_the_user_sets_wins():
    settings = load_settings(
        {**CPU, "actor_rollout_ref.model.override_config.attn_implementation": "eager", "critic.strategy": "fsdp"}
    )
    assert settings.verl.actor_rollout_ref.model.override_config.attn_implementation == "eager"
    assert settings.verl.critic.strategy == "fsdp"


def test_adapters_are_merged_for_our_own_server():
    assert load_settings({**CPU, "actor_rollout_ref.model.lora_rank": 8}).verl.actor_rollout_ref.model.lora.merge
    assert not load_settings(CPU).verl.actor_rollout_ref.model.lora.merge


def test_without_a_device_nothing_of_it_is_set():
    settings = load_settings()
    assert settings.verl.actor_rollout_ref.rollout.name == "vllm"
    assert settings.verl.actor_rollout_ref.rollout.dtype == "bfloat16"
    assert load_settings(["agentlightning.device=cuda"]).verl.trainer.device == "cuda"


@pytest.mark.parametrize("is_there", [True, False])
def test_attention_is_torchs_own_where_flash_attn_is_not_installed(monkeypatch, is_there):
    found = importlib.util.find_spec
    flash = importlib.machinery.ModuleSpec("flash_attn", None) if is_there else None
    monkeypatch.setattr(settings_of, "find_spec", lambda name: flash if name == "flash_attn" else found(name))
    model = load_settings(["agentlightning.device=cuda"]).verl.actor_rollout_ref.model
    assert model.use_remove_padding, "micro-batches of 16k tokens would be padded to several times as many"
    assert model.override_config.get("attn_implementation") == (None if is_there else "sdpa")


def test_one_gpu_is_enough_for_what_is_set_without_being_said():
    config = load_settings(["agentlightning.device=cuda"]).verl
    assert config.actor_rollout_ref.rollout.tensor_model_parallel_size == 1
    assert (config.actor_rollout_ref.actor.strategy, config.critic.strategy) == ("fsdp2", "fsdp2")
    assert config.actor_rollout_ref.actor.fsdp_config.strategy == "fsdp2"


def test_a_library_of_the_user_comes_beside_ours_which_has_the_server_and_the_critic():
    own = load_settings(["actor_rollout_ref.model.external_lib=mine"]).verl
    assert own.actor_rollout_ref.model.external_lib == ["lightning_verl.workers", "mine"]
    assert own.critic.model.external_lib == "lightning_verl.workers"
