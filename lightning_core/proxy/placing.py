"""On which replica the calls of an attempt stay, and on which its stored responses are."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from lightning_core.proxy.owner import Owner

MAX_ATTEMPTS = 10_000
"""How many attempts are remembered with their replica; an older one gets a new one."""
MAX_RESPONSES = 100_000
"""How many stored responses are remembered; the newest."""
_LONGEST_ID = 1024


@dataclass(frozen=True, slots=True)
class Wanted:
    """A place for the calls of an attempt. Replicas of a model are numbered as in the model list, from 0 on."""

    list_version: int
    """Which model list the numbers are those of."""
    model: str
    attempt: str
    up: Sequence[int]
    """The replicas that may be chosen."""
    in_flight: Sequence[int]
    """How many calls are under way on each replica, as far as the asking worker knows."""


class Placing(Protocol):
    """Says where an attempt's calls go, where several processes make them."""

    async def place(self, wanted: Wanted) -> int | None:
        """Return the number of a replica; None where nobody can say, and the asking worker decides by itself."""
        ...

    async def keep_response(self, list_version: int, owner: Owner | None, response_id: str, number: int) -> None:
        """Remember which attempt a stored response belongs to, and on which replica of the whole list it is."""
        ...

    async def of_response(self, list_version: int, owner: Owner | None, response_id: str) -> int | None:
        """Return the number of the replica; None where that attempt has no such response."""
        ...


class StoredResponses:
    """Which attempt has which stored response, and on which replica of the model list that is.

    The newest 100,000 are remembered, none with an id of more than 1,024 characters.
    """

    def __init__(self) -> None:
        self._numbers: OrderedDict[tuple[Owner | None, str], int] = OrderedDict()

    def keep(self, owner: Owner | None, response_id: str, number: int) -> None:
        """Remember a response."""
        if len(response_id) <= _LONGEST_ID:
            self._numbers[owner, response_id] = number
            if len(self._numbers) > MAX_RESPONSES:
                self._numbers.popitem(last=False)

    def find(self, owner: Owner | None, response_id: str) -> int | None:
        """Return the number of the replica; None where that attempt has no such response."""
        return self._numbers.get((owner, response_id))

    def change_list(self, numbers: Mapping[int, int]) -> None:
        """Take the numbers of another model list; what is on a replica that has none is forgotten.

        Args:
            numbers: The new ones, by the old ones.
        """
        known = self._numbers.items()
        self._numbers = OrderedDict((key, numbers[number]) for key, number in known if number in numbers)


class Places:
    """Where attempts are, for all workers: an attempt stays where it is as long as that replica may be chosen.

    A new one goes to the replica with the fewest calls under way, by what each worker told last; among equal ones to
    the one that got the fewest attempts.
    """

    def __init__(self) -> None:
        self._of_attempt: OrderedDict[tuple[str, str], int] = OrderedDict()
        self._assigned: dict[tuple[str, int], int] = {}
        self._in_flight: dict[tuple[object, str], Sequence[int]] = {}

    def clear(self) -> None:
        """Forget everything: the model list is another one, and so are the numbers."""
        self._of_attempt.clear()
        self._assigned.clear()
        self._in_flight.clear()

    def drop_worker(self, worker: object) -> None:
        """Forget what a worker told: it has died."""
        for key in [key for key in self._in_flight if key[0] is worker]:
            del self._in_flight[key]

    def place(self, worker: object, wanted: Wanted) -> tuple[int, bool]:
        """Choose for a worker.

        Returns:
            The replica's number, and whether the attempt was on another one before.
        """
        self._in_flight[worker, wanted.model] = wanted.in_flight
        key = (wanted.model, wanted.attempt)
        kept = self._of_attempt.get(key)
        if kept is not None and kept in wanted.up:
            self._of_attempt.move_to_end(key)
            return kept, False
        loads = self._loads(wanted.model)
        chosen = min(
            wanted.up,
            key=lambda number: (loads.get(number, 0), self._assigned.get((wanted.model, number), 0), number),
        )
        self._assigned[wanted.model, chosen] = self._assigned.get((wanted.model, chosen), 0) + 1
        self._of_attempt[key] = chosen
        self._of_attempt.move_to_end(key)
        if len(self._of_attempt) > MAX_ATTEMPTS:
            self._of_attempt.popitem(last=False)
        return chosen, kept is not None

    def _loads(self, model: str) -> Mapping[int, int]:
        loads: dict[int, int] = {}
        for (_, name), told in self._in_flight.items():
            if name == model:
                for number, count in enumerate(told):
                    loads[number] = loads.get(number, 0) + count
        return loads
