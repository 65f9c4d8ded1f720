"""How long a conversation may become, and verl's servers that allow as much."""

from collections.abc import Mapping
from typing import Any

from omegaconf import DictConfig, open_dict

from lightning_core.errors import ConfigError
from lightning_verl.config.context import changes, context_length, fault_of_positions, said_length


def longest_conversation(config: DictConfig, row: int) -> int:
    """Return how many tokens a conversation may have.

    Args:
        config: verl's, whole.
        row: How many a row may have; it is less where the model has no more, or `rollout.max_model_len` says so.
    """
    model, asked = config.actor_rollout_ref.model, config.actor_rollout_ref.rollout.max_model_len
    return int(asked or min(row, context_length(_told(model), model.override_config) or row))


def let_servers_go_as_far(config: DictConfig, row: int) -> None:
    """Set what verl's servers need to go as far as conversations do.

    vLLM plans memory for one conversation of the model's whole context, and does not start where that is too much.
    With YaRN a model's context is another one than `max_position_embeddings`, beyond which no server goes by itself.

    Args:
        config: verl's, whole; it is changed.
        row: How many tokens a row may have.

    Raises:
        ConfigError: When the model, downloaded only now, is one that cannot be trained.
    """
    model, rollout = config.actor_rollout_ref.model, config.actor_rollout_ref.rollout
    told = _told(model)
    if fault := fault_of_positions(told, str(model.path)):
        raise ConfigError(fault)
    said, context = (length(told, model.override_config) for length in (said_length, context_length))
    if said is None or (said == context and rollout.name != "vllm"):
        return
    longest = longest_conversation(config, row)
    with open_dict(config):
        rollout.max_model_len = longest
        if longest > said:
            changes(model.override_config).max_position_embeddings = context


def _told(model: DictConfig) -> Mapping[str, Any]:
    """Return a model's own configuration; nothing where verl fetches it later."""
    if "://" in str(model.path):
        return {}
    from transformers import AutoConfig

    told: Mapping[str, Any] = AutoConfig.from_pretrained(
        model.path, trust_remote_code=model.trust_remote_code
    ).to_dict()
    return told
