"""Filter, sort and page records: what a query says, the methods that take one, and the plain way to carry it out."""

import functools
import inspect
import types
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from functools import cache
from numbers import Integral
from typing import Any, Literal, NamedTuple, ParamSpec, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel

from lightning_core.errors import InvalidRequest
from lightning_core.registry.options import did_you_mean
from lightning_core.types import FilterLogic, PaginatedResult, SortOrder

T = TypeVar("T")
R = TypeVar("R")
P = ParamSpec("P")


class Condition(NamedTuple):
    """One condition on one field: `is` a value, `in` a set of values, or a string that `contains` another."""

    field: str
    test: Literal["is", "in", "contains"]
    value: Any

    def holds(self, found: Any) -> bool:
        """Whether a field of this value fulfils it."""
        if self.test == "is":
            return bool(found == self.value)
        if self.test == "in":
            return found in self.value
        return found is not None and self.value in found


class Query(NamedTuple):
    """Conditions, an order and a page."""

    conditions: tuple[Condition, ...] = ()
    logic: FilterLogic = "and"
    sort_by: str | None = None
    sort_order: SortOrder = "asc"
    limit: int = -1
    offset: int = 0

    def matches(self, item: T, get: Callable[[T, str], Any] = getattr) -> bool:
        """Whether the item fulfils the conditions; one without conditions matches everything.

        Args:
            item: What to look at.
            get: Returns the item's field of this name.
        """
        if not self.conditions:
            return True
        combined = all if self.logic == "and" else any
        return combined(condition.holds(get(item, condition.field)) for condition in self.conditions)


def make_query(
    model: type,
    *,
    filter_logic: FilterLogic = "and",
    sort_by: str | None = None,
    sort_order: SortOrder = "asc",
    limit: int = -1,
    offset: int = 0,
    **conditions: Any,
) -> Query:
    """Check a caller's arguments and make a query of them.

    Args:
        model: The pydantic model of the items; says which fields there are to sort by.
        filter_logic: How the conditions are combined.
        sort_by: A field of the model that holds numbers or strings; None for the order of insertion.
        sort_order: `"asc"` or `"desc"`.
        limit: The largest number of items; -1 for all.
        offset: How many items to skip.
        conditions: `field`, `field_in` or `field_contains` -> value; None where the caller gave none.

    Raises:
        InvalidRequest: Says which argument is wrong and what it may be.
    """
    if filter_logic not in ("and", "or"):
        raise InvalidRequest(f"filter_logic is {filter_logic!r}; it is 'and' or 'or'")
    if sort_order not in ("asc", "desc"):
        raise InvalidRequest(f"sort_order is {sort_order!r}; it is 'asc' or 'desc'")
    check_page(limit, offset)
    if sort_by is not None and sort_by not in (fields := sortable(model)):
        known = ", ".join(sorted(fields))
        raise InvalidRequest(
            f"cannot sort {model.__name__}s by {sort_by!r}; fields: {known}{did_you_mean(sort_by, fields)}"
        )
    return Query(
        conditions=tuple(_condition(model, key, value) for key, value in conditions.items() if value is not None),
        logic=filter_logic,
        sort_by=sort_by,
        sort_order=sort_order,
        limit=limit,
        offset=offset,
    )


def check_page(limit: int, offset: int) -> None:
    """Check which part of the matches is asked for.

    Raises:
        InvalidRequest: Says which of both is wrong and what it may be.
    """
    if not _is_whole(limit) or limit < -1:
        raise InvalidRequest(f"limit is {limit!r}; it is -1 (all) or a number from 0 on")
    if not _is_whole(offset) or offset < 0:
        raise InvalidRequest(f"offset is {offset!r}; it counts from 0")


def select(items: Iterable[T], query: Query, *, get: Callable[[T, str], Any] = getattr) -> tuple[list[T], int]:
    """Carry out a query over items in the order of their insertion.

    Args:
        items: What to search.
        query: What to look for.
        get: Returns an item's field of this name.

    Returns:
        The page, and how many items match on all pages.
    """
    found = [item for item in items if query.matches(item, get)] if query.conditions else list(items)
    if query.sort_by is not None:
        found = _sorted(found, query.sort_by, get, reverse=query.sort_order == "desc")
    end = None if query.limit == -1 else query.offset + query.limit
    return found[query.offset : end], len(found)


def _sorted(items: list[T], field: str, get: Callable[[T, str], Any], *, reverse: bool) -> list[T]:
    try:
        return sorted(items, key=lambda item: get(item, field), reverse=reverse)
    except TypeError:  # None has no place among the others by itself
        return sorted(items, key=lambda item: ((value := get(item, field)) is not None, value), reverse=reverse)


def _is_whole(value: Any) -> bool:
    return type(value) is int or (isinstance(value, Integral) and not isinstance(value, bool))


def _condition(model: Any, key: str, value: Any) -> Condition:
    if not key.endswith("_in"):
        if not isinstance(value, str):
            raise InvalidRequest(f"{key} is {value!r}; it takes a string")
        if key.endswith("_contains"):
            return Condition(key.removesuffix("_contains"), "contains", value)
        return Condition(key, "is", value)
    if isinstance(value, str) or not isinstance(value, Sequence | set | frozenset):
        raise InvalidRequest(f"{key} is {value!r}; it takes a sequence of values")
    field = key.removesuffix("_in")
    choices = _choices(model.model_fields[field].annotation)
    if choices and (wrong := [item for item in value if item not in choices]):
        raise InvalidRequest(f"{key} has {wrong[0]!r}; it takes {', '.join(map(repr, choices))}")
    if not choices and (wrong := [item for item in value if not isinstance(item, str)]):
        raise InvalidRequest(f"{key} has {wrong[0]!r}; it takes strings")
    return Condition(field, "in", frozenset(value))


def _choices(annotation: Any) -> tuple[Any, ...]:
    """Return the values that a field can have, or nothing where there is no list of them."""
    if get_origin(annotation) is Literal:
        return get_args(annotation)
    if get_origin(annotation) in (Union, types.UnionType):
        return tuple(choice for member in get_args(annotation) for choice in _choices(member))
    return ()


@cache
def sortable(model: Any) -> tuple[str, ...]:
    """Return the fields by which records of this type can be sorted."""
    return tuple(name for name, field in model.model_fields.items() if _is_plain(field.annotation))


def _is_plain(annotation: Any) -> bool:
    if annotation in (str, int, float, bool, type(None)):
        return True
    kind = get_origin(annotation)
    if kind is Literal:
        return True
    return kind in (Union, types.UnionType) and all(map(_is_plain, get_args(annotation)))


def make_page(items: Sequence[T], query: Query, total: int) -> PaginatedResult[T]:
    """Return what a query found."""
    return PaginatedResult.model_construct(items=items, limit=query.limit, offset=query.offset, total=total)


_OLDER_NAMES = {"status": "status_in", "rollout_ids": "rollout_id_in"}


def query_method(
    declared: Callable[P, Awaitable[R]], model: type[BaseModel]
) -> Callable[[Callable[..., Awaitable[R]]], Callable[P, Coroutine[Any, Any, R]]]:
    """Give a method the signature of one of the interface's queries; its conditions and its page become a `Query`.

    The method is called with the arguments that are not options, and then the query.
    """
    signature = inspect.signature(declared)
    parameters = signature.parameters.values()
    names = [each.name for each in parameters if each.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    defaults = {each.name: each.default for each in parameters if each.default is not inspect.Parameter.empty}

    def decorate(run: Callable[..., Awaitable[R]]) -> Callable[P, Coroutine[Any, Any, R]]:
        @functools.wraps(run)
        async def find(*args: P.args, **kwargs: P.kwargs) -> R:
            given: dict[str, Any] = {**defaults, **dict(zip(names, args, strict=False)), **kwargs}
            is_twice = len({*names[: len(args)], *kwargs}) < len(args) + len(kwargs)
            if is_twice or given.keys() != signature.parameters.keys():
                signature.bind(*args, **kwargs)  # says what is wrong, much slower
            others = [given.pop(name) for name in names]
            for old, new in _OLDER_NAMES.items():
                if (value := given.pop(old, None)) is not None and given[new] is None:
                    given[new] = value
            return await run(*others, make_query(model, **given))

        find.__signature__ = signature  # type: ignore[attr-defined]
        find.__doc__ = declared.__doc__
        return find

    return decorate
