"""The sequence ids of each attempt's spans, taken in blocks: one for what a request brings."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from pymongo import UpdateOne

from lightning_core.concurrency import Batcher
from lightning_core.errors import NotFound
from lightning_mongo import schema
from lightning_mongo.database import Database, key_of

_REMEMBERED = 2_000
"""Of how many attempts it is kept in mind what their spans are."""


class Attempt(NamedTuple):
    """Whose spans are numbered."""

    run_id: str
    rollout_id: str
    attempt_id: str

    @property
    def field(self) -> str:
        """Where its number stands in the document of the rollout."""
        escaped = "".join(f"%{ord(letter):02x}" if letter in "%.$\0" else letter for letter in self.attempt_id)
        return f"numbers.{escaped}"


class Last(NamedTuple):
    """The last number of an attempt."""

    number: int = 0
    token: str | None = None
    """What the write left behind that took it; None where there was none yet."""
    spans: frozenset[str] | None = frozenset()
    """The ids of all its spans; None where they are not known."""


class _Taking(NamedTuple):
    attempt: Attempt
    before: Last
    number: int
    token: str


class Numbers:
    """Gives each number of an attempt once, whichever process asks.

    The last number stands in the document of the rollout, so that a rollout that was deleted has none to give. It
    changes hands by compare-and-set. While no other process took one, this process knows which spans there are, too.

    Args:
        database: The open database.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._known: OrderedDict[Attempt, Last] = OrderedDict()
        self._takings: Batcher[_Taking, Last | None] = Batcher(self._take_all)

    def last(self, attempt: Attempt) -> Last:
        """Return what is believed to be the last number; `Last()` where it is not known."""
        return self._known.get(attempt, Last())

    async def take(self, attempt: Attempt, before: Last, number: int) -> Last | None:
        """Make this the last number.

        Args:
            attempt: Of which attempt.
            before: What is believed to be the last one.
            number: What it is to be.

        Returns:
            What it is now. None when the belief was wrong: then `last` knows better.

        Raises:
            NotFound: When the rollout is gone.
        """
        token = self._database.new_token()
        found = await self._takings.ask(_Taking(attempt, before, number, token))
        if found is None:
            self._known.pop(attempt, None)
            raise rollouts_gone(attempt.run_id, [attempt.rollout_id])
        if found.token == token:
            # Spans become known once they are kept; meanwhile there may be some that are not known.
            taken = Last(number, token, before.spans)
            self._know(attempt, taken)
            return taken
        self._know(attempt, found)
        return None

    async def take_next(self, attempt: Attempt, count: int) -> Last:
        """Take so many, and return the last number before them."""
        while True:
            before = self.last(attempt)
            if await self.take(attempt, before, before.number + count) is not None:
                return before

    def kept(self, attempt: Attempt, taken: Last, spans: Sequence[str]) -> None:
        """Record spans that are kept, unless numbers were taken since."""
        known = self._known.get(attempt)
        if known is not None and known.token == taken.token and known.spans is not None:
            self._know(attempt, known._replace(spans=known.spans.union(spans)))

    def not_kept(self, attempt: Attempt) -> None:
        """Note that it is not known which spans were kept."""
        self._known.pop(attempt, None)

    def _know(self, attempt: Attempt, last: Last) -> None:
        self._known[attempt] = last
        self._known.move_to_end(attempt)
        if len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)

    async def _take_all(self, takings: list[_Taking]) -> list[Last | None]:
        operations = [self._operation(taking) for taking in takings]
        if await self._database.change(schema.ROLLOUTS, operations) == len(takings):
            return [Last(taking.number, taking.token) for taking in takings]
        ids = [self._id(taking.attempt) for taking in takings]
        found = await self._database.find(schema.ROLLOUTS, {"_id": {"$in": ids}}, {"numbers": 1})
        documents = {key_of(document): document for document in found}
        answers: list[Last | None] = []
        for taking, id in zip(takings, ids, strict=True):
            document = documents.get(tuple(id.values()))
            if document is None:
                answers.append(None)
                continue
            number, token = document.get("numbers", {}).get(taking.attempt.field.partition(".")[2], (0, None))
            answers.append(Last(number, token, None if token is not None else frozenset()))
        return answers

    def _operation(self, taking: _Taking) -> UpdateOne:
        field = taking.attempt.field
        belief: dict[str, Any] = (
            {field: {"$exists": False}} if taking.before.token is None else {f"{field}.1": taking.before.token}
        )
        return UpdateOne({"_id": self._id(taking.attempt), **belief}, {"$set": {field: [taking.number, taking.token]}})

    def _id(self, attempt: Attempt) -> dict[str, str]:
        return {"run": self._database.run_key(attempt.run_id), "id": attempt.rollout_id}


def rollouts_gone(run_id: str, rollout_ids: Iterable[str]) -> NotFound:
    """Return the error that says which rollouts are not there."""
    return NotFound(f"run {run_id} has no rollout {', '.join(repr(each) for each in sorted(rollout_ids))}")
