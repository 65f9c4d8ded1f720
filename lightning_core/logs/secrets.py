"""Keeps keys and passwords out of logs and records."""

import re
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

_HIDDEN = "***"

_NAMES = re.compile(r"(api_?key|secret|password|authorization|credentials?|(^|_)token)$", re.IGNORECASE)

_TEXTS = (
    (re.compile(r"(?i)\b((?:bearer|basic)\s+)[\w.~+/=-]{6,}"), rf"\1{_HIDDEN}"),
    (re.compile(r"\b(sk|pk|rk|hf|xai|gsk)([-_])[\w-]{12,}"), rf"\1\2{_HIDDEN}"),
    (re.compile(r"(\w://)[^\s/@:]*:[^\s/@]+@"), rf"\1{_HIDDEN}@"),
    (
        re.compile(
            r"(?i)((?:api[_-]?key|secret|password|authorization|access[_-]?token)[\"']?\s*[=:]\s*[\"']?)[^\s\"'&,;]+"
        ),
        rf"\1{_HIDDEN}",
    ),
)


def hide_in_text(text: str) -> str:
    """Replace what looks like a key, a token or a password in a text. What looks like none is not found."""
    for pattern, replacement in _TEXTS:
        text = pattern.sub(replacement, text)
    return text


def hide_in_field(name: str, value: Any) -> Any:
    """Replace the value of a field that is named as a secret is, and what looks like one in any text."""
    if _NAMES.search(name):
        return _HIDDEN
    if value is None or isinstance(value, (bool, int, float)):
        return value
    return hide_in_text(str(value))


def without_secrets(name: str, value: Any) -> Any:
    """Return a value as something that YAML and JSON can say, with what is a secret replaced, however deep it lies."""
    named = name.replace("-", "_")
    if isinstance(value, BaseModel):
        value = value.model_dump()
    if isinstance(value, Mapping) and hide_in_field(named, "") == "":
        return {key: without_secrets(str(key), each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [without_secrets(name, each) for each in value]
    return hide_in_field(named, value) if isinstance(value, str | int | float | Mapping) else value
