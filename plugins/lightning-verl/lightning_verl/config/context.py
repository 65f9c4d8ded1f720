"""How many tokens a model can have before it, as its own configuration says."""

from collections.abc import Mapping
from typing import Any

_NAMES = ("max_position_embeddings", "n_positions")
"""What models call it; the second is GPT-2's."""


def context_length(told: Mapping[str, Any], overrides: Mapping[str, Any]) -> int | None:
    """Return how many tokens a model can have before it at most; None where that is not said.

    Args:
        told: What its `config.json` has; a model of more than text says it under `text_config`.
        overrides: What verl is told to change in it, `actor_rollout_ref.model.override_config`.
    """
    for place in ({**told, **overrides}, told.get("text_config") or {}):
        for name in _NAMES:
            if isinstance(length := place.get(name), int):
                return length
    return None
