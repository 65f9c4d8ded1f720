"""What a query takes and what it gives back."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Generic, Literal, TypedDict, TypeVar, overload

from pydantic import BaseModel

T = TypeVar("T")

FilterLogic = Literal["and", "or"]
"""Whether all of the given conditions must hold, or any of them."""

SortOrder = Literal["asc", "desc"]
"""Smallest first, or largest first. None sorts before every value."""


class FilterField(TypedDict, total=False):
    """Conditions on one field."""

    exact: Any
    """Equal to this value."""
    within: Sequence[Any]
    """Equal to one of these values."""
    contains: str
    """A string that contains this one."""


FilterOptions = Mapping[str, FilterField | FilterLogic | Mapping[str, FilterField]]
"""Field name -> conditions.

Two names are special: `_aggregate` (`"and"`, the default, or `"or"`) says how the conditions are combined,
`_must` holds further fields whose conditions must all hold, whatever `_aggregate` says.
"""


class SortOptions(TypedDict):
    """The field to sort by, and the direction."""

    name: str
    order: SortOrder


class PaginatedResult(BaseModel, Sequence[T], Generic[T]):
    """One page of a query's result; a sequence of its items."""

    items: Sequence[T]
    """The items of this page."""
    limit: int
    """The largest number of items that was asked for; -1 for all."""
    offset: int
    """How many matching items come before this page."""
    total: int
    """How many items match, on all pages together.

    `lightning-mongo` counts at most 100,000, or one more than up to the end of this page where that is more; all of
    them where `limit` is 0.
    """

    def __len__(self) -> int:
        return len(self.items)

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...
    def __getitem__(self, index: int | slice) -> T | Sequence[T]:
        return self.items[index]

    def __iter__(self) -> Iterator[T]:  # type: ignore[override]  # a sequence of items, not of fields
        return iter(self.items)

    def __repr__(self) -> str:
        return f"<PaginatedResult {len(self.items)} of {self.total} from {self.offset}: {list(self.items)!r}>"
