"""Immutable values, and fast construction of models from values that were already checked."""

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, TypeVar

from pydantic import BaseModel


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


M = TypeVar("M", bound=BaseModel)


def construct(model: type[M], fields: dict[str, Any], fields_set: set[str], extra: dict[str, Any] | None = None) -> M:
    """Make a model of fields that are right, all of them.

    Args:
        model: Its type.
        fields: The value of every field. The model keeps this very dict.
        fields_set: The fields that are not there by default. The model keeps this very set: share one only among
            models that are never changed.
        extra: The extra fields, of a model that allows them; kept as they are.
    """
    made = _new(model)
    _set_fields(made, fields)
    _set_fields_set(made, fields_set)
    _set_extra(made, extra)
    _set_private(made, None)
    return made


def evolve(model: M, **changed: Any) -> M:
    """Make the model that follows this one, which shares with it whatever is not changed.

    Both are to be treated as frozen from then on. The model takes no extra fields.
    """
    return construct(type(model), {**model.__dict__, **changed}, model.__pydantic_fields_set__)


def clone(model: M, **changed: Any) -> M:
    """Copy a model, replacing fields. The values of the others are shared, but either model may change its own."""
    extra = model.__pydantic_extra__
    fields = {**model.__dict__, **changed}
    return construct(type(model), fields, set(model.__pydantic_fields_set__), None if extra is None else dict(extra))


_new = object.__new__
# The four slots of every model, set past `BaseModel.__setattr__`, which would check.
_set_fields, _set_fields_set, _set_extra, _set_private = (
    vars(BaseModel)[slot].__set__
    for slot in ("__dict__", "__pydantic_fields_set__", "__pydantic_extra__", "__pydantic_private__")
)
