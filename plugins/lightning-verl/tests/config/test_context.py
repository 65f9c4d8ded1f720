"""How long conversations may become, with models as transformers writes them."""

from pathlib import Path

import pytest
from lightning_tokens.testing import make_tiny_model
from lightning_verl.config import load_settings
from lightning_verl.rules import longest_conversation, set_context_of_servers
from lightning_verl.training import told_of

CONTEXT = 64


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"), context=CONTEXT)


@pytest.mark.parametrize(
    ("more", "row", "longest", "planned"),
    [
        ({}, CONTEXT - 4, CONTEXT - 4, CONTEXT - 4),
        ({}, 1000, CONTEXT, CONTEXT),
        ({"actor_rollout_ref.rollout.max_model_len": 50}, 1000, 50, 50),
        ({"+actor_rollout_ref.model.override_config.max_position_embeddings": 128}, 1000, 128, 128),
        ({"agentlightning.device": "cpu"}, 1000, CONTEXT, None),
        ({"actor_rollout_ref.model.path": "hdfs://somewhere/model"}, 1000, 1000, None),
    ],
)
def test_a_conversation_ends_with_the_context_or_the_row_and_vllm_plans_memory_for_no_longer_one(
    model, more, row, longest, planned
):
    config = load_settings({"actor_rollout_ref.model.path": str(model), **more}, preset="grpo").verl
    told = told_of(config.actor_rollout_ref.model)
    assert longest_conversation(config, told, row=row) == longest
    set_context_of_servers(config, told, row=row)
    assert config.actor_rollout_ref.rollout.max_model_len == planned
    assert longest_conversation(config, told, row=row) == longest
