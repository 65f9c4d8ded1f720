"""Keeps keys and passwords out of logs and records.

A secret is told by the name of its field, by its looks, or because it was seen before in a config, in resources or in
the environment.
"""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
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

_SECRET_VARIABLE = re.compile(r"(^|_)(key|token|pass|passwd|pat)$", re.IGNORECASE)
"""Names of environment variables that are secret besides those of `_NAMES`."""

_PLAIN_HEADER = re.compile(r"^(accept|content|host$|http-referer$|user-agent$|x-title$)|version|beta", re.IGNORECASE)
"""Headers whose values stand in other texts, too, and are not hidden there."""

_REFERENCE = "os.environ/"
_SHORTEST = 8
"""What is shorter stands for no key, such as `EMPTY`, and may be a part of any text."""

_SHAPES = (
    (re.compile(r"(?i)\b((?:bearer|basic)\s+)[\w.~+/=-]{6,}"), rf"\1{_HIDDEN}"),
    (re.compile(r"\b(sk|pk|rk|hf|xai|gsk)([-_])[\w-]{12,}"), rf"\1\2{_HIDDEN}"),
    (re.compile(r"\b(AIza)[\w-]{30,}"), rf"\1{_HIDDEN}"),
    (re.compile(r"\b(AKIA|ASIA)[A-Z0-9]{16}\b"), rf"\1{_HIDDEN}"),
    (re.compile(r"\b(gh[opsur]_|github_pat_)\w{20,}"), rf"\1{_HIDDEN}"),
    (re.compile(r"\b(xox[a-z]-)[\w-]{10,}"), rf"\1{_HIDDEN}"),
    (re.compile(r"\b(eyJ)[\w-]{6,}\.[\w-]{6,}(?:\.[\w-]*)?"), rf"\1{_HIDDEN}"),
    (ATTEMPT_KEY, rf"\1{_HIDDEN}"),
    (re.compile(r"(\w://)[^\s/@:]*:[^\s/@]+@"), rf"\1{_HIDDEN}@"),
)

_ASSIGNED = re.compile(
    rf"(?i)((?:{_KEY}|secret[\w-]{{0,40}}|password|authorization|access[_-]?token)[\"']?\s*[=:]\s*[\"']?)[^\s\"'&,;]+"
)

_remembered: frozenset[str] = frozenset()
_values: re.Pattern[str] | None = None
"""Finds what is remembered; None while that is nothing."""


def remember_secrets(name: str, value: Any) -> None:
    """Hide the secrets of a value from now on, in whichever text they appear.

    Args:
        name: What the value is called; it says whether the whole value is a secret.
        value: A text, a model, or a mapping or list of such. Of `os.environ/NAME` the variable's value is hidden.
    """
    _remember(_secrets_in(name, value))


def remember_environment() -> None:
    """Hide the values of environment variables that are named as a secret is, unless it is the path of a file."""
    _remember(value for name, value in os.environ.items() if _is_secret_variable(name) and not os.path.exists(value))


def hide_keys(text: str) -> str:
    """Replace secrets that are remembered, and what has the form of a key, in a text that is somebody's data."""
    if _values is not None:
        text = _values.sub(_HIDDEN, text)
    for pattern, replacement in _SHAPES:
        text = pattern.sub(replacement, text)
    return text


def hide_keys_in(value: Any) -> Any:
    """Copy a value of mappings and lists, with `hide_keys` done to each text."""
    if isinstance(value, Mapping):
        return {key: hide_keys_in(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [hide_keys_in(item) for item in value]
    return hide_keys(value) if isinstance(value, str) else value


def hide_in_text(text: str) -> str:
    """Replace what `hide_keys` does, and what stands behind a word such as `password=`, in a message."""
    return _ASSIGNED.sub(rf"\1{_HIDDEN}", hide_keys(text))


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


def _secrets_in(name: str, value: Any) -> Iterator[str]:
    """Yield the texts that `without_secrets` hides as a whole."""
    value = value.model_dump() if isinstance(value, BaseModel) else value
    if without_secrets(name, value) == _HIDDEN:
        yield from _texts_in(value)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            if _HEADERS.search(name):
                yield from () if _PLAIN_HEADER.search(str(key)) else _texts_in(item)
            elif _ENVIRONMENT.search(name) and _VARIABLE.fullmatch(str(key)):
                yield from _texts_in(item) if _is_secret_variable(str(key)) else ()
            else:
                yield from _secrets_in(str(key), item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _secrets_in(name, item)


def _texts_in(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        text = os.environ.get(value.removeprefix(_REFERENCE), "") if value.startswith(_REFERENCE) else value
        yield text
        yield text.rpartition(" ")[2]  # without `Bearer`
    elif isinstance(value, Mapping | list | tuple):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _texts_in(item)


def _is_secret_variable(name: str) -> bool:
    return _NAMES.search(name) is not None or _SECRET_VARIABLE.search(name) is not None


def _remember(found: Iterable[str]) -> None:
    global _remembered, _values
    new = {text for text in found if len(text) >= _SHORTEST} - _remembered
    if new:
        _remembered |= new
        longest_first = sorted(_remembered, key=len, reverse=True)
        _values = re.compile("|".join(map(re.escape, longest_first)))
