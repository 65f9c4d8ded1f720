from pathlib import Path

import pytest
from lightning_verl.config import Settings, check_settings, load_settings

from lightning_core.errors import ConfigError


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


def test_an_empty_dataset_is_refused(model):
    assert refused(settings(model), n_train=0) == "the training dataset is empty"
    assert refused(settings(model), n_val=0).startswith("the validation dataset is empty")


def test_fewer_samples_than_a_batch_are_refused(model):
    assert refused(settings(model), n_train=7) == (
        "data.train_batch_size is 8, and the training dataset has 7 samples, less than one batch; set it to 7 or less"
    )


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (
            {"actor_rollout_ref.actor.ppo_mini_batch_size": 3},
            "data.train_batch_size is 8, which is no multiple of actor_rollout_ref.actor.ppo_mini_batch_size, 3",
        ),
        ({"actor_rollout_ref.actor.ppo_mini_batch_size": 16}, "which is no multiple of"),
        ({"data.gen_batch_size": 3}, "data.train_batch_size is 8, which is no multiple of data.gen_batch_size, 3"),
        (
            {"trainer.n_gpus_per_node": 3},
            "a mini-batch has 8 * 4 = 32 rollouts (actor_rollout_ref.actor.ppo_mini_batch_size * "
            "actor_rollout_ref.rollout.n), which 3 workers",
        ),
        (
            {"actor_rollout_ref.rollout.tensor_model_parallel_size": 2},
            "the parallel sizes of actor_rollout_ref.rollout, 2",
        ),
        (
            {"trainer.v1.trainer_mode": "separate_async", "trainer.v1.separate_async.parameter_sync_step": 3},
            "which is no multiple of trainer.v1.separate_async.parameter_sync_step, 3",
        ),
        ({"actor_rollout_ref.rollout.n": 1}, "grpo compares the rollouts of one task, so it has to be 2 or more"),
        ({"data.train_batch_size": 0}, "data.train_batch_size is 0; it has to be 1 or more"),
        (
            {"actor_rollout_ref.actor.ppo_max_token_len_per_gpu": 2000},
            "has room for 2000 tokens, and a row may have 2112 (prompt and response); set it to 2112 or more",
        ),
    ],
)
def test_sizes_that_do_not_fit_are_refused(model, more, message):
    assert message in refused(settings(model, **more))


def test_a_critic_is_content_with_one_rollout(model):
    config = {"algorithm.adv_estimator": "gae", "actor_rollout_ref.rollout.n": 1}
    check_settings(settings(model, **config), n_train=8, n_val=None)


@pytest.mark.parametrize("path", ["/nowhere/at/all", "./nowhere", "nowhere"])
def test_a_model_that_is_nowhere_is_refused(path):
    message = refused(settings(path))
    assert message == (
        f"actor_rollout_ref.model.path is {path!r}: there is no such folder, and it is no 'owner/name' of the "
        "Hugging Face hub"
    )


def test_a_model_of_the_hub_is_refused_offline_unless_it_was_downloaded(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert "the hub is switched off" in refused(settings("no-such-owner/no-such-model"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.delenv("TRANSFORMERS_OFFLINE", raising=False)
    check_settings(settings("no-such-owner/no-such-model"), n_train=8, n_val=None)


def test_a_folder_that_is_no_model_is_refused(tmp_path):
    assert "a folder without a config.json; it is no model" in refused(settings(tmp_path))


def test_a_tokenizer_without_a_chat_template_is_refused(model):
    (model / "tokenizer_config.json").write_text("{}")
    assert "has no chat template" in refused(settings(model))
    (model / "tokenizer_config.json").unlink()
    assert "has no chat template" in refused(settings(model))
    check_settings(settings(model, **{"actor_rollout_ref.model.custom_chat_template": "{{ x }}"}), n_train=8, n_val=1)
    (model / "chat_template.jinja").write_text("{{ messages }}")
    check_settings(settings(model), n_train=8, n_val=1)


def test_a_tokenizer_of_its_own_is_looked_at(model, tmp_path):
    (tmp_path / "tokens").mkdir()
    message = refused(settings(model, **{"actor_rollout_ref.model.tokenizer_path": str(tmp_path / "tokens")}))
    assert "has no chat template" in message
    missing = refused(settings(model, **{"actor_rollout_ref.model.tokenizer_path": "/nowhere/at/all"}))
    assert missing.startswith("actor_rollout_ref.model.tokenizer_path is '/nowhere/at/all'")


def test_a_damaged_tokenizer_says_where(model):
    (model / "tokenizer_config.json").write_text("{")
    assert str(model / "tokenizer_config.json") in refused(settings(model))


def test_all_that_does_not_fit_is_said_at_once(model):
    message = refused(settings("/nowhere", **{"data.gen_batch_size": 3}), n_train=0)
    assert len(message.splitlines()) == 4
