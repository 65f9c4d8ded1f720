"""The items of converted responses, which some clients do not send back but name by their ids."""

from collections import OrderedDict
from typing import Any

from lightning_proxy.conversion.base import Fields
from lightning_proxy.jsons import dump

_REFERENCE = "item_reference"


class StoredItems:
    """The newest items, each for the attempt that got it. In this process alone.

    Args:
        max_bytes: How much is kept in all.
    """

    def __init__(self, *, max_bytes: int = 64 * 1024 * 1024) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._items: OrderedDict[tuple[str | None, str], tuple[Fields, int]] = OrderedDict()

    def keep(self, attempt_id: str | None, item: Fields) -> None:
        """Keep an item; the oldest ones are forgotten for it."""
        size = len(dump(item))
        self._items[attempt_id, str(item["id"])] = item, size  # an id is of one item
        self._bytes += size
        while self._bytes > self._max_bytes:
            self._bytes -= self._items.popitem(last=False)[1][1]

    def resolve(self, attempt_id: str | None, request: Fields) -> Fields:
        """Return a request with the items that it names; the same object where it names none that are known."""
        given = request.get("input")
        if not isinstance(given, list):
            return request
        found = [self._resolved(attempt_id, item) for item in given]
        is_same = all(one is two for one, two in zip(found, given, strict=True))
        return request if is_same else {**request, "input": found}

    def _resolved(self, attempt_id: str | None, item: Any) -> Any:
        if not isinstance(item, dict) or item.get("type") != _REFERENCE:
            return item
        known = self._items.get((attempt_id, str(item.get("id"))))
        return item if known is None else known[0]
