"""Values in memory beside the database: as they were committed, and as the open transaction has them."""

from collections import OrderedDict
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Cached(Generic[K, V]):
    """What the writer knows without asking the database.

    Only the writer's thread changes it. Other threads may look at what is committed, and see what the newest finished
    commit left, never something that is not yet acknowledged.

    Args:
        limit: How many values are kept; those that were not written for longest are forgotten first.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._committed: OrderedDict[K, V] = OrderedDict()
        self._staged: dict[K, V | None] = {}
        self._emptied = False

    def committed(self, key: K) -> V | None:
        """Return the committed value; None where it is not known here. Any thread may ask."""
        return self._committed.get(key)

    def get(self, key: K) -> V | None:
        """Return the value as the open transaction has it; None where it is not known here."""
        if key in self._staged:
            return self._staged[key]
        return None if self._emptied else self._committed.get(key)

    def set(self, key: K, value: V) -> None:
        """Note a value that the open transaction read or wrote."""
        self._staged[key] = value

    def forget(self, key: K) -> None:
        """Ask the database the next time."""
        self._staged[key] = None

    def forget_all(self) -> None:
        """Ask the database for everything."""
        self._staged.clear()
        self._emptied = True

    def commit(self) -> None:
        """Let everybody see what the transaction did."""
        if self._emptied:
            self._committed.clear()
        for key, value in self._staged.items():
            if value is None:
                self._committed.pop(key, None)
            else:
                self._committed[key] = value
                self._committed.move_to_end(key)
        while len(self._committed) > self._limit:
            self._committed.popitem(last=False)
        self.roll_back()

    def roll_back(self) -> None:
        """Forget what the transaction did."""
        self._staged.clear()
        self._emptied = False
