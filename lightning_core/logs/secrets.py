"""Keeps keys and passwords out of logs and records."""

import re
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from lightning_core.types.text import ATTEMPT_KEY

_HIDDEN = "***"

_KEY = (
    r"(?:access|account|admin|api|attempt|auth|client|encryption|functions|licen[cs]e|master|private|report|runner|"
    r"secret|service|shared|signing|storage|subscription|virtual)[_-]?key"
)
"""Not every name that ends so: `prompt_key` and `search_key` say where to look."""

_NAMES = re.compile(
    rf"secret|({_KEY}|^key|password|passphrase|authorization|credentials?|(^|[_-]|access|auth|session)token)$",
    re.IGNORECASE,
)

_HEADERS = re.compile(r"(^|[_-])headers$", re.IGNORECASE)
"""Each service has its own name for the header that has its key, so none of them is shown."""

_ENVIRONMENT = re.compile(r"(^|[_-])(env|environ|environment)([_-]?var(s|iables?))?$", re.IGNORECASE)
_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")
"""What a program is given in its environment is not shown, either. The environment that an agent acts in is something
else: the names in it are not those of variables."""

_TEXTS = (
    (re.compile(r"(?i)\b((?:bearer|basic)\s+)[\w.~+/=-]{6,}"), rf"\1{_HIDDEN}"),
    (re.compile(r"\b(sk|pk|rk|hf|xai|gsk)([-_])[\w-]{12,}"), rf"\1\2{_HIDDEN}"),
    (ATTEMPT_KEY, rf"\1{_HIDDEN}"),
    (re.compile(r"(\w://)[^\s/@:]*:[^\s/@]+@"), rf"\1{_HIDDEN}@"),
    (
        re.compile(
            rf"(?i)((?:{_KEY}|secret[\w-]{{0,40}}|password|authorization|access[_-]?token)[\"']?\s*[=:]\s*[\"']?)"
            r"[^\s\"'&,;]+"
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
    if isinstance(value, Mapping) and _HEADERS.search(name):
        return dict.fromkeys(map(str, value), _HIDDEN)
    if isinstance(value, Mapping) and _ENVIRONMENT.search(name):
        variables = {str(key) for key in value if _VARIABLE.fullmatch(str(key))}
        return {key: _HIDDEN if key in variables else without_secrets(str(key), each) for key, each in value.items()}
    if isinstance(value, Mapping) and hide_in_field(named, "") == "":
        return {key: without_secrets(str(key), each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [without_secrets(name, each) for each in value]
    return hide_in_field(named, value) if isinstance(value, str | int | float | Mapping) else value
