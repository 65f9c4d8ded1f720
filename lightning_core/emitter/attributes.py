"""From the nested attributes that a person writes to the flat ones that a span has."""

from collections.abc import Iterator, Mapping
from typing import Any

from lightning_core.types.span import plain_attributes

_PRIMITIVES = (str, bool, int, float)


def flatten_attributes(nested: Mapping[str, Any]) -> dict[str, Any]:
    """Join nested names with dots: `{"a": {"b": 1}}` becomes `{"a.b": 1}`.

    A list of primitives of one type stays a list. Any other list is a mapping of its positions, which count from 0:
    `{"a": [{"b": 1}]}` becomes `{"a.0.b": 1}`. None is a value like any other; so is an empty list or mapping.

    Raises:
        ValueError: For a name that is not a string, for two values that end up under one name, and for a value that
            no span can have.
    """
    flat: dict[str, Any] = {}
    for name, value in _leaves(nested, ""):
        if name in flat:
            raise ValueError(f"attribute {name!r} is given twice, as a nested and as a dotted name; leave one out")
        flat[name] = value
    return plain_attributes(flat)


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
