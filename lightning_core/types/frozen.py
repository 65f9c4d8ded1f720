"""Values that cannot be changed, and so can be shared instead of copied."""

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn


class FrozenDict(dict[str, Any]):
    """A dict that refuses to be changed. Equal to a dict of the same items, and a dict wherever one is read."""

    __slots__ = ()

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError("this is part of a recorded span and cannot be changed; make a new one: dict(old, key=value)")

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __copy__(self) -> "FrozenDict":
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> "FrozenDict":
        return self

    def __reduce__(self) -> tuple[type["FrozenDict"], tuple[dict[str, Any]]]:
        return FrozenDict, (dict(self),)


EMPTY = FrozenDict()
"""The one without items: most of those that spans have."""


def freeze(value: Any) -> Any:
    """Make a JSON-like value unchangeable: sequences become tuples, mappings become `FrozenDict`s."""
    if isinstance(value, Mapping):
        return FrozenDict((key, freeze(item)) for key, item in value.items()) if value else EMPTY
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return tuple(freeze(item) for item in value)
    return value
