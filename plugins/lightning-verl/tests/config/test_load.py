from operator import attrgetter
from pathlib import Path

import pytest
from hydra import compose, initialize_config_module
from lightning_verl import config as settings_of
from lightning_verl.config import load_settings
from omegaconf import OmegaConf

from lightning_core.errors import ConfigError

# As the users of agentlightning 0.3 write it; from the docstring of its VERL class
OF_0_3 = {
    "algorithm": {"adv_estimator": "grpo", "use_kl_in_reward": False},
    "data": {"train_batch_size": 32, "max_prompt_length": 4096, "max_response_length": 2048},
    "actor_rollout_ref": {
        "rollout": {
            "tensor_model_parallel_size": 1,
            "n": 4,
            "log_prob_micro_batch_size_per_gpu": 4,
            "multi_turn": {"format": "hermes"},
            "name": "vllm",
            "gpu_memory_utilization": 0.6,
        },
        "actor": {
            "ppo_mini_batch_size": 32,
            "ppo_micro_batch_size_per_gpu": 4,
            "optim": {"lr": 1e-6},
            "use_kl_loss": False,
            "kl_loss_coef": 0.0,
            "entropy_coeff": 0,
            "clip_ratio_low": 0.2,
            "clip_ratio_high": 0.3,
            "fsdp_config": {"param_offload": True, "optimizer_offload": True},
        },
        "ref": {"log_prob_micro_batch_size_per_gpu": 8, "fsdp_config": {"param_offload": True}},
        "model": {
            "path": "Qwen/Qwen2.5-1.5B-Instruct",
            "use_remove_padding": True,
            "enable_gradient_checkpointing": True,
        },
    },
    "trainer": {
        "n_gpus_per_node": 1,
        "val_before_train": True,
        "critic_warmup": 0,
        "logger": ["console", "wandb"],
        "project_name": "AgentLightning",
        "experiment_name": "calc_x",
        "nnodes": 1,
        "save_freq": 64,
        "test_freq": 32,
        "total_epochs": 2,
    },
}


def test_the_dictionary_of_0_3_is_taken_as_it_is():
    settings = load_settings(OF_0_3)
    for keys, value in leaves(OF_0_3):
        assert OmegaConf.select(settings.verl, keys) == value
    assert settings.verl.trainer.v1.trainer_mode == "sync"  # what was not said is verl's
    assert (settings.learning.level, settings.learning.max_prompt_length) == ("transition", 4096)
    assert settings.own.device is None


def leaves(values, inside=""):
    for key, value in values.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{inside}{key}.")
        else:
            yield f"{inside}{key}", value


def test_our_own_keys_say_how_it_is_learned_and_do_not_go_to_verl():
    settings = load_settings(
        {
            **OF_0_3,
            "agentlightning": {
                "trace_aggregator": {"level": "trajectory", "trajectory_max_prompt_length": 100},
                "credit": "discounted",
                "call_discount": 0.5,
                "on_failure": -1,
                "reward_weights": {"right": 1.0, "short": -0.5},
            },
        }
    )
    learning = settings.learning
    assert (learning.level, learning.max_prompt_length, learning.max_response_length) == ("trajectory", 100, 8192)
    assert (learning.credit, learning.call_discount, learning.on_failure) == ("discounted", 0.5, -1.0)
    assert learning.reward_weights == {"right": 1.0, "short": -0.5}
    assert "agentlightning" not in settings.verl


def test_a_file_and_assignments_say_the_same_as_a_mapping(tmp_path: Path):
    path = tmp_path / "train.yaml"
    path.write_text(
        "algorithm:\n  adv_estimator: rloo\nactor_rollout_ref.actor.optim.lr: 1e-6\nactor_rollout_ref:\n  rollout:\n"
        "    n: 4\n"
    )
    assignments = [
        "algorithm.adv_estimator=rloo",
        "actor_rollout_ref.actor.optim.lr=1e-6",
        "actor_rollout_ref.rollout={n: 4}",
    ]
    mapping = {"algorithm.adv_estimator": "rloo", "actor_rollout_ref": {"actor.optim.lr": 1e-6, "rollout.n": 4}}
    settings = load_settings(mapping)
    assert settings.verl == load_settings(path).verl == load_settings(str(path)).verl == load_settings(assignments).verl
    assert settings.verl == load_settings(OmegaConf.create({**mapping})).verl
    assert settings.learning.estimator == "rloo"


def test_a_reference_of_verl_stays_one():
    settings = load_settings({"actor_rollout_ref": {"model": {"path": "a/b"}, "rollout": {"n": 3}}})
    assert settings.verl.critic.model.path == "a/b"
    assert settings.verl.actor_rollout_ref.actor.rollout_n == 3
    settings.verl.actor_rollout_ref.rollout.n = 5
    assert settings.verl.actor_rollout_ref.actor.rollout_n == 5


def test_a_key_that_verl_does_not_list_is_added_with_a_plus():
    given = ["+data.cache_dir=/somewhere", "++actor_rollout_ref.actor.fsdp_config.mixed_precision=null"]
    settings = load_settings(given)
    assert settings.verl.data.cache_dir == "/somewhere"
    with pytest.raises(ConfigError, match=r"unknown key 'data\.cache_dir'"):
        load_settings(["data.cache_dir=/somewhere"])


def test_what_goes_on_to_another_program_may_have_any_key():
    settings = load_settings(
        {
            "actor_rollout_ref.rollout.engine_kwargs.vllm": {"seed": 1},
            "actor_rollout_ref.model.override_config": {"attn_implementation": "eager"},
            "ray_kwargs.ray_init": {"num_gpus": 1, "runtime_env": {"env_vars": {"A": "b"}}},
        }
    )
    assert settings.verl.actor_rollout_ref.rollout.engine_kwargs.vllm.seed == 1
    assert settings.verl.ray_kwargs.ray_init.runtime_env.env_vars.A == "b"


def test_the_defaults_are_those_that_verls_own_program_begins_with():
    packaged = settings_of._packaged_defaults()
    with initialize_config_module("verl.trainer.config", version_base=None):
        theirs = compose("ppo_trainer")
    assert OmegaConf.to_container(packaged) == OmegaConf.to_container(theirs)


def test_without_verl_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr("lightning_verl.config.find_spec", lambda name: None)
    settings_of._packaged_defaults.cache_clear()
    with pytest.raises(ConfigError, match="verl is not installed; install lightning-verl"):
        load_settings()


@pytest.mark.parametrize(
    ("preset", "estimator", "n", "min_rewards"), [("grpo", "grpo", 4, 2), ("rloo", "rloo", 4, 2), ("ppo", "gae", 1, 1)]
)
def test_a_preset_is_set_before_what_is_given(preset, estimator, n, min_rewards):
    settings = load_settings(preset=preset)
    assert settings.verl.algorithm.adv_estimator == settings.learning.estimator == estimator
    assert settings.verl.actor_rollout_ref.rollout.n == n
    assert settings.learning.level == "trajectory"
    assert settings.learning.min_rewards == min_rewards
    given = ["agentlightning.trace_aggregator.level=transition", "actor_rollout_ref.rollout.n=7"]
    changed = load_settings(given, preset=preset)
    assert changed.learning.level == "transition"
    assert changed.verl.actor_rollout_ref.rollout.n == 7


@pytest.mark.parametrize(
    ("own", "lengths"), [({}, (16384, 20000)), ({"trajectory_max_prompt_length": 100}, (100, 20000))]
)
def test_a_trajectory_has_room_for_the_longest_call_unless_its_length_is_set(own, lengths):
    told = {"data": {"max_prompt_length": 16384, "max_response_length": 20000}, "agentlightning.trace_aggregator": own}
    learning = load_settings(told, preset="grpo").learning
    assert (learning.max_prompt_length, learning.max_response_length) == lengths
    plain = load_settings(preset="grpo").learning
    assert (plain.max_prompt_length, plain.max_response_length) == (2048, 8192)


def test_an_unknown_preset_names_the_nearest():
    with pytest.raises(ConfigError, match=r"no preset 'grop'; there are: grpo, rloo, ppo\. Did you mean 'grpo'\?"):
        load_settings(preset="grop")


LOSS = "actor_rollout_ref.actor.loss_agg_mode"


@pytest.mark.parametrize(
    ("given", "key", "value"),
    [
        ("", "learning.needs_logprobs", True),
        ("", "verl.actor_rollout_ref.rollout.calculate_log_probs", True),
        ("actor_rollout_ref.rollout.calculate_log_probs=false", "learning.needs_logprobs", False),
        # Rollouts weigh the same unless verl's loss is asked for.
        ("", "learning.loss", "rollout"),
        ("", f"verl.{LOSS}", "seq-mean-token-mean"),
        (f"{LOSS}=token-mean", "learning.loss", "verl"),
        (f"{LOSS}=token-mean", f"verl.{LOSS}", "token-mean"),
        (f"{LOSS}=seq-mean-token-mean", "learning.loss", "rollout"),
        # verl's other estimators are row by row.
        ("algorithm.adv_estimator=reinforce_plus_plus", "learning.advantage", "row"),
        ("algorithm.adv_estimator=gae", "learning.advantage", "rollout"),
        ("algorithm.adv_estimator=mine", "learning.estimator", "mine"),
    ],
)
def test_what_is_learned_and_how_follows_from_what_is_said(given, key, value):
    settings = load_settings([each for each in given.split("; ") if each], preset="grpo")
    assert attrgetter(key)(settings) == value


def test_checkpoints_are_written_by_time_unless_steps_are_said():
    assert load_settings().checkpoint_seconds == 600
    for frequency in (20, -1):
        by_steps = load_settings({"trainer.save_freq": frequency})
        assert by_steps.checkpoint_seconds is None
        assert by_steps.verl.trainer.save_freq == frequency


def test_the_best_checkpoint_and_the_newest_are_kept_unless_verls_keys_say_how_many():
    plain = load_settings()
    assert plain.keeps_best
    assert plain.verl.trainer.max_actor_ckpt_to_keep is None, "verl would remove the best one"
    assert load_settings({"trainer.save_freq": 20}).keeps_best
    for number in ("null", "3"):
        assert not load_settings([f"trainer.max_actor_ckpt_to_keep={number}"]).keeps_best


def test_the_model_that_comes_out_is_validated_unless_it_is_said_when():
    assert load_settings().verl.trainer.test_freq > 1_000_000  # after the last step alone
    for frequency in (5, -1):
        assert load_settings({"trainer.test_freq": frequency}).verl.trainer.test_freq == frequency
