"""From the nested attributes that a person writes to the flat ones that a span has."""

import dataclasses
import re
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from lightning_core.types.span import plain_attributes
from lightning_core.types.text import hide_attempt_keys


def text_of(value: object) -> str:
    """Return `str(value)`; for an object that has none, what happened instead. Never raises."""
    try:
        return str(value)
    except Exception as exc:
        # An agent's object may have a broken __str__; what is recorded of it must not become the agent's failure.
        return f"<no text: str() raised {type(exc).__name__}>"


_PRIMITIVES = (str, bool, int, float)

_SECRET = re.compile(r"(?:^|[._-])(?:api[_-]?key|password|authorization)$", re.IGNORECASE)

_MAX_DEPTH = 16
"""How deep values are described; what lies deeper, as in a list that contains itself, is given as text."""


def flatten_attributes(nested: Mapping[str, Any]) -> dict[str, Any]:
    """Join nested names with dots: `{"a": {"b": 1}}` becomes `{"a.b": 1}`.

    A list of primitives of one type stays a list. Any other list is a mapping of its positions, which count from 0:
    `{"a": [{"b": 1}]}` becomes `{"a.0.b": 1}`. None is a value like any other; so is an empty list or mapping.

    Raises:
        TypeError: When `nested` is not a mapping.
        ValueError: For a name that is not a string, for two values that end up under one name, and for a value that
            no span can have.
    """
    if not isinstance(nested, Mapping):
        raise TypeError(f"attributes are a mapping of names to values, got {type(nested).__name__}")
    flat: dict[str, Any] = {}
    for name, value in _leaves(nested, ""):
        if name in flat:
            raise ValueError(f"attribute {name!r} is given twice, as a nested and as a dotted name; leave one out")
        flat[name] = value
    return plain_attributes(flat)


def describe(name: str, value: Any) -> dict[str, Any]:
    """Make attributes of any Python value, under this name and, where it is nested, below it.

    Mappings, lists, tuples, dataclasses and pydantic models are nested; what else no span can have becomes its text.
    Never raises, and changes nothing: it is used on values that are none of our business. Such a value may be the model
    that an agent is given, so keys of attempts, and what is called an API key or a password, are replaced.
    """
    leaves = _leaves({name: _recordable(value, _MAX_DEPTH)}, "")
    return plain_attributes({name: _without_secret(name, leaf) for name, leaf in leaves})


def _without_secret(name: str, leaf: Any) -> Any:
    if isinstance(leaf, str):
        return "***" if leaf and _SECRET.search(name) else hide_attempt_keys(leaf)
    if isinstance(leaf, list):
        return [_without_secret(name, item) for item in leaf]
    return leaf


def _leaves(branch: Mapping[Any, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in branch.items():
        if not isinstance(key, str):
            where = f"under {prefix[:-1]!r} " if prefix else ""
            raise ValueError(f"an attribute {where}is named {key!r} ({type(key).__name__}); names must be strings")
        name = prefix + key
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{name}.")
        elif isinstance(value, list) and not _is_leaf(value):
            yield from _leaves({str(index): item for index, item in enumerate(value)}, f"{name}.")
        else:
            yield name, value


def _is_leaf(items: list[Any]) -> bool:
    kinds = {type(item) for item in items}
    return not kinds or (len(kinds) == 1 and issubclass(kinds.pop(), _PRIMITIVES))


def _recordable(value: Any, depth: int) -> Any:
    if value is None or isinstance(value, (*_PRIMITIVES, bytes)):
        return value
    if depth == 0:
        return text_of(value)
    try:
        if isinstance(value, Mapping):
            return {text_of(key): _recordable(item, depth - 1) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [_recordable(item, depth - 1) for item in value]
        if isinstance(value, BaseModel):
            return {key: _recordable(item, depth - 1) for key, item in value}
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            names = [field.name for field in dataclasses.fields(value)]
            return {name: _recordable(getattr(value, name), depth - 1) for name in names}
    except Exception as exc:
        return f"<cannot be read: {type(exc).__name__}>"
    return text_of(value)
