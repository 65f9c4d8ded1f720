"""How many tokens a model can have before it, as its own configuration says."""

from collections.abc import Mapping
from typing import Any

ROPE = ("rope_parameters", "rope_scaling")
"""Where a model says how it is lengthened; the second is the older name."""

_NAMES = ("max_position_embeddings", "n_positions")
"""What models call it; the second is GPT-2's."""


def context_length(told: Mapping[str, Any]) -> int | None:
    """Return how many tokens a model can have before it at most; None where that is not said.

    With YaRN these are its factor times as many as it was trained on first, which engines allow, and which
    `max_position_embeddings` need not have. Other ways to lengthen a model are taken to be in it already.

    Args:
        told: What its `config.json` has; a model of more than text says it under `text_config`.
    """
    for place in _places(told):
        if (said := _said(place)) is not None:
            return _with_yarn(place, said)
    return None


def said_length(told: Mapping[str, Any]) -> int | None:
    """Return `max_position_embeddings`, without YaRN's factor; see `context_length`."""
    return next((said for place in _places(told) if (said := _said(place)) is not None), None)


def _places(told: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    return told, told.get("text_config") or {}


def _said(place: Mapping[str, Any]) -> int | None:
    return next((length for name in _NAMES if isinstance(length := place.get(name), int)), None)


def _with_yarn(place: Mapping[str, Any], said: int) -> int:
    rope: Mapping[str, Any] = next((place[name] for name in ROPE if place.get(name)), {})
    for each in (rope, *rope.values()):  # one for all layers, or one for each kind of them
        if isinstance(each, Mapping) and each.get("rope_type", each.get("type")) == "yarn" and each.get("factor"):
            return int((each.get("original_max_position_embeddings") or said) * each["factor"])
    return said
