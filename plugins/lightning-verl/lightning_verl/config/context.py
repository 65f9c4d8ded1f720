"""What a model can have before it, as its own configuration says: how many tokens, and whether they stand in a line.

And how long a conversation may become, with verl's servers that allow as much.
"""

from collections.abc import Mapping
from typing import Any

from lightning_tokens import context
from omegaconf import DictConfig, open_dict


def context_length(told: Mapping[str, Any], overrides: Mapping[str, Any]) -> int | None:
    """Return how many tokens a model can have before it at most; None where that is not said.

    Args:
        told: What its `config.json` has.
        overrides: What verl changes in it, `actor_rollout_ref.model.override_config`.
    """
    changed = context.said_length(changes(overrides))
    return context.context_length(told) if changed is None else changed


def said_length(told: Mapping[str, Any], overrides: Mapping[str, Any]) -> int | None:
    """Return `max_position_embeddings`: with more tokens than that, verl's servers refuse to start.

    Args:
        told: As for `context_length`.
        overrides: The same.
    """
    changed = context.said_length(changes(overrides))
    return context.said_length(told) if changed is None else changed


def fault_of_positions(told: Mapping[str, Any], path: str) -> str | None:
    """Return why a model cannot be trained: it sees images, and its tokens have several positions each (M-RoPE).

    Args:
        told: What its `config.json` has.
        path: `actor_rollout_ref.model.path`, to name it by.
    """
    if not (_has(told, "vision_config") and _has(told, "mrope_section")):
        return None
    return (
        f"actor_rollout_ref.model.path is {path!r}, a model of images ({told.get('model_type')}) that places each "
        "token in several dimensions (mrope_section in its config.json), and rows of training have one; take a model "
        "of text alone"
    )


def changes(overrides: Mapping[str, Any]) -> Any:
    """Return where in `override_config` verl looks for what is changed in the model's configuration."""
    return overrides.get("model_config", overrides)


def _has(told: Mapping[str, Any], name: str) -> bool:
    return name in told or any(_has(part, name) for part in told.values() if isinstance(part, Mapping))


def longest_conversation(config: DictConfig, told: Mapping[str, Any], *, row: int) -> int:
    """Return how many tokens a conversation may have.

    Args:
        config: verl's, whole.
        told: What the model's `config.json` has; nothing where it is not known yet.
        row: How many a row may have; it is less where the model has no more, or `rollout.max_model_len` says so.
    """
    model, asked = config.actor_rollout_ref.model, config.actor_rollout_ref.rollout.max_model_len
    return int(asked or min(row, context_length(told, model.override_config) or row))


def let_servers_go_as_far(config: DictConfig, told: Mapping[str, Any], *, row: int) -> None:
    """Set what verl's servers need to go as far as conversations do.

    vLLM plans memory for one conversation of the model's whole context, and does not start where that is too much.
    With YaRN a model's context is another one than `max_position_embeddings`, beyond which no server goes by itself.

    Args:
        config: verl's, whole; it is changed.
        told: As for `longest_conversation`.
        row: The same.
    """
    model, rollout = config.actor_rollout_ref.model, config.actor_rollout_ref.rollout
    said, context = (length(told, model.override_config) for length in (said_length, context_length))
    if said is None or (said == context and rollout.name != "vllm"):
        return
    longest = longest_conversation(config, told, row=row)
    with open_dict(config):
        rollout.max_model_len = longest
        if longest > said:
            changes(model.override_config).max_position_embeddings = context
