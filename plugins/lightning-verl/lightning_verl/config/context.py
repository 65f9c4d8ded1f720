"""What a model can have before it, as its own configuration says: how many tokens, and whether they stand in a line.

And how long a conversation may become, with verl's servers that allow as much.
"""

from collections.abc import Mapping
from typing import Any

from omegaconf import DictConfig, open_dict

_NAMES = ("max_position_embeddings", "n_positions")
"""What models call it; the second is GPT-2's."""

ROPE = ("rope_parameters", "rope_scaling")
"""Where a model says how it is lengthened; the second is the older name."""


def context_length(told: Mapping[str, Any], overrides: Mapping[str, Any]) -> int | None:
    """Return how many tokens a model can have before it at most; None where that is not said.

    With YaRN these are its factor times as many as it was trained on first, which engines allow, and which
    `max_position_embeddings` need not have. Other ways to lengthen a model are taken to be in it already.

    Args:
        told: What its `config.json` has; a model of more than text says it under `text_config`.
        overrides: What verl changes in it, `actor_rollout_ref.model.override_config`.
    """
    if (changed := said_length({}, overrides)) is not None:
        return changed
    for place in _places(told):
        if (said := _said(place)) is not None:
            return _with_yarn(place, said)
    return None


def said_length(told: Mapping[str, Any], overrides: Mapping[str, Any]) -> int | None:
    """Return `max_position_embeddings`: with more tokens than that, verl's servers refuse to start.

    Args:
        told: As for `context_length`.
        overrides: The same.
    """
    places = (changes(overrides), *_places(told))
    return next((said for place in places if (said := _said(place)) is not None), None)


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


def _places(told: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    return told, told.get("text_config") or {}


def _has(told: Mapping[str, Any], name: str) -> bool:
    return name in told or any(_has(part, name) for part in told.values() if isinstance(part, Mapping))


def _said(place: Mapping[str, Any]) -> int | None:
    return next((length for name in _NAMES if isinstance(length := place.get(name), int)), None)


def _with_yarn(place: Mapping[str, Any], said: int) -> int:
    rope: Mapping[str, Any] = next((place[name] for name in ROPE if place.get(name)), {})
    for each in (rope, *rope.values()):  # one for all layers, or one for each kind of them
        if isinstance(each, Mapping) and each.get("rope_type", each.get("type")) == "yarn" and each.get("factor"):
            return int((each.get("original_max_position_embeddings") or said) * each["factor"])
    return said


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
