"""How long conversations may become, with models as transformers writes them."""

import json
from pathlib import Path

import pytest
from lightning_tokens.testing import make_tiny_model
from lightning_verl.config import load_settings
from lightning_verl.rules import longest_conversation, set_context_of_servers
from lightning_verl.training import told_of
from omegaconf import DictConfig

CONTEXT, LONGER = 64, 256


@pytest.fixture(scope="module")
def with_yarn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_tiny_model(tmp_path_factory.mktemp("yarn"), context=CONTEXT)
    path = folder / "config.json"
    told = json.loads(path.read_text())
    told.pop("rope_parameters")
    told["rope_scaling"] = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": CONTEXT}
    path.write_text(json.dumps(told))
    return folder


def config_of(model: Path | str, **more) -> DictConfig:
    return load_settings(
        {"agentlightning.device": "cpu", "actor_rollout_ref.model.path": str(model), **more}, preset="grpo"
    ).verl


def limits(config: DictConfig) -> tuple[int | None, int | None]:
    """What verl's servers are told: the longest conversation, and the model's context where it is not the model's."""
    model = config.actor_rollout_ref.model
    return config.actor_rollout_ref.rollout.max_model_len, model.override_config.get("max_position_embeddings")


@pytest.mark.parametrize(("row", "longest"), [(1000, LONGER), (100, 100)])
def test_a_conversation_with_yarn_goes_on_behind_what_the_model_was_trained_on(with_yarn, row, longest):
    config = config_of(with_yarn)
    assert longest_conversation(config, told_of(config.actor_rollout_ref.model), row=row) == longest
    set_context_of_servers(config, told_of(config.actor_rollout_ref.model), row=row)
    assert limits(config) == (longest, LONGER)
    assert longest_conversation(config, told_of(config.actor_rollout_ref.model), row=row) == longest


def test_the_model_is_left_as_it_is_where_rows_are_short(with_yarn):
    config = config_of(with_yarn)
    set_context_of_servers(config, told_of(config.actor_rollout_ref.model), row=40)
    assert limits(config) == (40, None)


def test_a_length_that_is_asked_for_stays(with_yarn):
    config = config_of(with_yarn, **{"actor_rollout_ref.rollout.max_model_len": 80})
    set_context_of_servers(config, told_of(config.actor_rollout_ref.model), row=1000)
    assert limits(config) == (80, LONGER)


def test_verl_takes_the_context_that_the_user_says(with_yarn):
    config = config_of(with_yarn, **{"+actor_rollout_ref.model.override_config.max_position_embeddings": 128})
    set_context_of_servers(config, told_of(config.actor_rollout_ref.model), row=1000)
    assert limits(config) == (None, 128)
    assert longest_conversation(config, told_of(config.actor_rollout_ref.model), row=1000) == 128


def test_a_model_without_yarn_is_left_as_it_is(tmp_path):
    config = config_of(make_tiny_model(tmp_path / "model", context=CONTEXT))
    set_context_of_servers(config, told_of(config.actor_rollout_ref.model), row=1000)
    assert limits(config) == (None, None)
    assert longest_conversation(config, told_of(config.actor_rollout_ref.model), row=1000) == CONTEXT


@pytest.mark.parametrize(("row", "longest"), [(CONTEXT - 4, CONTEXT - 4), (1000, CONTEXT)])
def test_vllm_plans_memory_for_the_longest_conversation_and_not_for_the_whole_context(tmp_path, row, longest):
    path = make_tiny_model(tmp_path / "model", context=CONTEXT)
    config = load_settings({"actor_rollout_ref.model.path": str(path)}, preset="grpo").verl
    set_context_of_servers(config, told_of(config.actor_rollout_ref.model), row=row)
    assert limits(config) == (longest, None)
    assert longest_conversation(config, told_of(config.actor_rollout_ref.model), row=row) == longest


def test_a_length_that_is_asked_of_vllm_stays(tmp_path):
    path, asked = make_tiny_model(tmp_path / "model", context=CONTEXT), {"actor_rollout_ref.rollout.max_model_len": 50}
    config = load_settings({"actor_rollout_ref.model.path": str(path), **asked}, preset="grpo").verl
    set_context_of_servers(config, told_of(config.actor_rollout_ref.model), row=20)
    assert limits(config) == (50, None)


def test_a_model_that_verl_fetches_later_is_as_long_as_a_row():
    config = config_of("hdfs://somewhere/model")
    set_context_of_servers(config, told_of(config.actor_rollout_ref.model), row=1000)
    assert limits(config) == (None, None)
    assert longest_conversation(config, told_of(config.actor_rollout_ref.model), row=1000) == 1000


def test_the_generator_of_hugging_face_goes_as_far(with_yarn):
    from lightning_tokens.generator import Generator

    assert Generator.load(str(with_yarn)).context == LONGER


@pytest.mark.filterwarnings("ignore")  # those of verl and of what it imports
def test_verls_servers_allow_as_much(with_yarn):
    from verl.utils.config import omega_conf_to_dataclass
    from verl.workers.config import HFModelConfig
    from verl.workers.rollout.utils import get_max_position_embeddings

    config = config_of(with_yarn)
    set_context_of_servers(config, told_of(config.actor_rollout_ref.model), row=1000)
    model = omega_conf_to_dataclass(config.actor_rollout_ref.model, dataclass_type=HFModelConfig)
    assert get_max_position_embeddings(model.hf_config) == LONGER
