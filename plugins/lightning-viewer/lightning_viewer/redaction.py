"""Takes what was said out of a report, for readers who may see the numbers only."""

import json
from collections.abc import Mapping
from typing import Any

from lightning_core.adapter.dialects import MODELS
from lightning_viewer.collect import RunData

_NAMES = frozenset(
    {
        *("after_rollouts", "algorithm", "before_rollouts", "example", "finish", "id", "kind", "label", "mode"),
        *("model", "name", "now", "old", "outcome", "parent", "purpose", "python", "role", "run", "span", "status"),
        "type",
    }
)
"""What is left as it is: names, ids and statuses. Texts under all other names are replaced."""

_BOOLEANS = ("true", "false")


def redacted(data: RunData) -> RunData:
    """Return a report's data with each text replaced by its length.

    Inputs, prompts, messages, tokens, failures, and texts of the config and of attributes are replaced. Numbers, ids,
    statuses, rewards, and the names of spans, tools, models, attributes and resources stay.

    Args:
        data: What `collect` returned.
    """
    return {**{name: _redacted(name, value) for name, value in data.items()}, "is_redacted": True}


def _redacted(name: str, value: Any) -> Any:
    match name, value:
        case _, str():
            return value if name in _NAMES else _length(value)
        case "versions", Mapping():
            return value
        case "tokens", Mapping():  # their ids are the text
            return None
        case (("input" | "task"), _):
            return _length(value)
        case "inputs", Mapping():
            return {key: _length(each) for key, each in value.items()}
        case "inputs", list():
            return [_length(each) for each in value]
        case (("texts" | "config"), Mapping()):
            return _without_texts(value)
        case "attributes", Mapping():
            return {
                key: each if key in MODELS or each in _BOOLEANS else _without_texts(each) for key, each in value.items()
            }
        case _, Mapping():
            return {key: _redacted(key, each) for key, each in value.items()}
        case _, list() | tuple():
            return [_redacted(name, each) for each in value]
    return value


def _without_texts(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_texts(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_without_texts(each) for each in value]
    return _length(value) if isinstance(value, str) else value


def _length(value: Any) -> Any:
    if value is None or value == "":
        return value
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return f"[{len(text):,} characters]"
