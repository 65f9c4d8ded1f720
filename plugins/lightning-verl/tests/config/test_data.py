from pathlib import Path

import pytest
from lightning_verl.config import Settings, check_settings, load_settings
from lightning_verl.rules import fault_of_positions
from lightning_verl.training import told_of
from omegaconf import OmegaConf

from lightning_core.errors import ConfigError

ACTOR = "actor_rollout_ref.actor"


def settings(model: Path | str, **more) -> Settings:
    return load_settings(
        {
            "agentlightning.device": "cpu",
            "agentlightning.trace_aggregator.trajectory_max_response_length": 64,
            "actor_rollout_ref.model.path": str(model),
            "data.train_batch_size": 8,
            "actor_rollout_ref.actor.ppo_mini_batch_size": 8,
            **more,
        },
        preset="grpo",
    )


def refused(settings: Settings, n_train: int = 16, n_val: int | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        check_settings(settings, n_train=n_train, n_val=n_val)
    return str(caught.value)


def test_what_fits_passes(model):
    check_settings(settings(model), n_train=8, n_val=1)
    check_settings(settings(model), n_train=8, n_val=None)
    critic = {"algorithm.adv_estimator": "gae", "actor_rollout_ref.rollout.n": 1}
    check_settings(settings(model, **critic), n_train=8, n_val=None)


def test_fewer_samples_than_a_batch_are_refused(model):
    assert "data.train_batch_size is 8, and the training dataset has 7" in refused(settings(model), n_train=7)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"actor_rollout_ref.rollout.n": 1}, "grpo compares the rollouts of one task, so it has to be 2 or more"),
        ({f"{ACTOR}.ppo_max_token_len_per_gpu": 2000}, "a row may have 2112 (prompt and response); set it to 2112"),
        ({f"{ACTOR}.ppo_mini_batch_size": 3}, f"is 8, which is not a multiple of {ACTOR}.ppo_mini_batch_size, 3"),
        ({f"{ACTOR}.ppo_mini_batch_size": 16}, "is not a multiple of"),
        ({"algorithm.adv_estimator": "gae", "critic.ppo_mini_batch_size": 16}, "of critic.ppo_mini_batch_size, 16"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(model, more, message):
    assert message in refused(settings(model, **more))


@pytest.mark.parametrize("inside", ["rope_scaling", "text_config"])
def test_a_model_of_images_is_refused(inside):
    rope = {"mrope_section": [16, 24, 24]}
    told = {"model_type": "qwen2_vl", "vision_config": {"depth": 32}}
    told[inside] = rope if inside == "rope_scaling" else {"rope_parameters": rope}
    assert fault_of_positions(told, "m") == (
        "actor_rollout_ref.model.path is 'm', a model of images (qwen2_vl) that places each token in several "
        "dimensions (mrope_section in its config.json), and rows of training have one; take a model of text alone"
    )


def test_a_model_of_images_whose_tokens_stand_in_a_line_is_taken():
    told = {"model_type": "gemma3", "vision_config": {}, "text_config": {"rope_parameters": {"rope_type": "default"}}}
    assert fault_of_positions(told, "m") is None


@pytest.mark.parametrize("written", [None, "", "{", "[]", "{}"])
def test_what_is_no_model_is_refused_by_its_path(tmp_path, written):
    path = tmp_path / "model"
    if written is not None:
        path.mkdir()
        (path / "config.json").write_text(written)
    with pytest.raises(ConfigError, match=f"model.path is '{path}', which is neither a model's folder nor its name on"):
        told_of(OmegaConf.create({"path": str(path), "trust_remote_code": False}))


def test_a_path_that_begins_at_home_is_written_out_for_verl(model, monkeypatch):
    monkeypatch.setenv("HOME", str(model.parent))
    loaded = settings("~/model", **{"trainer.default_local_dir": "~/checkpoints"})
    assert loaded.verl.actor_rollout_ref.model.path == str(model)
    assert loaded.verl.trainer.default_local_dir == str(model.parent / "checkpoints")
    check_settings(loaded, n_train=8, n_val=None)
    assert settings("~/model").verl.critic.model.path == str(model), "it is the actor's"


def test_all_that_does_not_fit_is_said_at_once(model):
    message = refused(settings("/nowhere"), n_train=0, n_val=0)
    assert len(message.splitlines()) == 3


@pytest.mark.parametrize(("sizes", "name"), [({"n_val": 0}, "validation"), ({"n_val": None, "n_test": 0}, "test")])
def test_a_dataset_of_nothing_is_refused(model, sizes, name):
    with pytest.raises(ConfigError, match=f"the {name} dataset is empty; leave it out, or give it samples"):
        check_settings(settings(model), n_train=8, **sizes)


@pytest.mark.parametrize(
    ("more", "mini"),
    [
        ({"data.train_batch_size": 12}, 12),
        ({"data.train_batch_size": 512}, 256),
        ({"data.train_batch_size": 300}, 300),
        ({"data.train_batch_size": 12, f"{ACTOR}.ppo_mini_batch_size": 6}, 6),
    ],
)
def test_a_mini_batch_that_was_not_set_fits_into_the_batch(more, mini):
    loaded = load_settings(more, preset="ppo")
    assert loaded.verl.actor_rollout_ref.actor.ppo_mini_batch_size == mini
    assert loaded.verl.critic.ppo_mini_batch_size == mini


def test_epochs_do_not_end_before_the_steps_that_were_asked_for():
    assert load_settings({"trainer.total_training_steps": 90}).verl.trainer.total_epochs == 90
    both = load_settings({"trainer.total_training_steps": 90, "trainer.total_epochs": 2})
    assert both.verl.trainer.total_epochs == 2
    assert load_settings().verl.trainer.total_epochs == 30


def test_what_was_learned_is_kept_as_hugging_face_has_models():
    assert load_settings().weights_folder == "actor/huggingface"
    assert load_settings().verl.trainer.save_freq > 1_000_000  # the last step alone
    shards = {f"{ACTOR}.checkpoint.save_contents": ["model"], "trainer.save_freq": -1}
    assert load_settings(shards).weights_folder == "actor"
    assert load_settings(shards).verl.trainer.save_freq == -1


LORA = {"actor_rollout_ref.model.lora_rank": 8}


@pytest.mark.parametrize(
    ("config", "folder"),
    [
        (LORA, "actor/lora_adapter"),
        ({f"{ACTOR}.checkpoint.save_contents": ["model", "optimizer", "extra"]}, None),
    ],
)
def test_each_checkpoint_has_a_folder_that_vllm_loads_or_a_warning_says_so(config, folder, caplog):
    settings = load_settings(config)
    if folder is None:
        assert "vLLM loads nothing that is saved" in caplog.text
    else:
        assert settings.weights_folder == folder
        assert not caplog.messages


def test_of_an_adapter_alone_the_weights_are_saved_unless_it_is_set():
    assert load_settings(LORA).verl.actor_rollout_ref.actor.checkpoint.save_lora_only
    whole = load_settings({**LORA, "actor_rollout_ref.actor.checkpoint.save_lora_only": False})
    assert not whole.verl.actor_rollout_ref.actor.checkpoint.save_lora_only


@pytest.mark.parametrize("preset", ["grpo", "ppo"])
def test_rows_as_long_as_those_of_0_3s_examples_fit_by_default(model, preset):
    lengths = {"trajectory_max_prompt_length": 4096, "trajectory_max_response_length": 34384}
    more = {"actor_rollout_ref.model.path": str(model), "data.train_batch_size": 8}
    loaded = load_settings({**more, "agentlightning": {"trace_aggregator": lengths}}, preset=preset)
    check_settings(loaded, n_train=8, n_val=None)
    ours = loaded.verl.actor_rollout_ref
    rooms = [ours.actor.ppo_max_token_len_per_gpu, loaded.verl.critic.ppo_max_token_len_per_gpu]
    rooms += [ours.ref.log_prob_max_token_len_per_gpu, ours.rollout.log_prob_max_token_len_per_gpu]
    assert rooms == [38480] * 4
    short = load_settings(preset=preset).verl
    assert short.actor_rollout_ref.actor.ppo_max_token_len_per_gpu == 16384
    assert short.critic.ppo_max_token_len_per_gpu == 32768
