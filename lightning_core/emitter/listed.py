"""Lists in flat attributes: `prefix.0`, `prefix.1`, ..."""

from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any


def listed(attributes: Mapping[str, Any], prefix: str, *fields: str) -> Iterator[str]:
    """Yield the name of each entry, `prefix.0` first, up to the first one that is not there.

    Args:
        attributes: Flat attributes.
        prefix: What the names of all entries begin with.
        fields: What an entry consists of: it is there when any of `prefix.0.FIELD` is. None when it is one value.
    """
    for position in count():
        name = f"{prefix}.{position}"
        if not any(part in attributes for part in ([f"{name}.{field}" for field in fields] or [name])):
            return
        yield name
