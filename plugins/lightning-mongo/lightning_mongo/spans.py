"""Spans in the database, and their sequence ids: taken in blocks, one for what a request brings."""

import asyncio
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from pymongo import DeleteMany, UpdateOne

from lightning_core.concurrency import Batcher
from lightning_core.errors import NotFound
from lightning_core.store.codec import EncodedSpan, SpanReader, encoded
from lightning_core.store.query import Query, select
from lightning_core.types import Span
from lightning_mongo import schema, schema as span_range
from lightning_mongo.conditions import counted, page
from lightning_mongo.database import Database, Settings, key_of
from lightning_mongo.portal import MongoPart, in_the_loop
from lightning_mongo.records import SERVER_TIME, check_size, expires_in

_FIELDS = ("sequence_id", "trace_id", "parent_id", "name", "start_time", "end_time", "source", "body")
_PROJECTION = dict.fromkeys((*_FIELDS, "number"), 1)
_OWN_FIELDS = {"sequence_id", "trace_id", "span_id", "attempt_id", "parent_id", "name", "start_time", "end_time", None}
"""What the database can sort by."""

_ALL = Query(sort_by="sequence_id")

_Read = tuple[str, str, str | None]
"""A run, as it is called in the database, a rollout, and an attempt; None for all of them."""


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


class _Numbered(NamedTuple):
    """What a request brings for one attempt."""

    taken: Last | None
    """The attempt's last number from then on; None when nothing is new."""
    sequence_ids: dict[int, int]
    """By the place in the request; without those spans that were there already."""


class _Inserted(NamedTuple):
    """What happened to the documents of a request."""

    there: set[tuple[str, ...]]
    """The keys of those that others brought."""
    gone: frozenset[str]
    """The rollouts that were deleted meanwhile, and their spans with them."""


class SpanPart(MongoPart):
    """The spans of all runs of a partition."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._numbers = Numbers(self._database)
        self._span_reads: Batcher[_Read, list[dict[str, Any]]] = Batcher(self._read_all, max_size=50)
        self._span_inserts: Batcher[list[dict[str, Any]], _Inserted] = Batcher(self._insert_spans, max_size=100)

    @in_the_loop
    async def append_spans(self, run_id: str, spans: Sequence[Span]) -> list[int | None]:
        """Keep spans of existing attempts, and number those whose `sequence_id` is 0.

        Raises:
            NotFound: When a rollout is gone.
        """
        rows = encoded(spans)
        by_attempt: dict[Attempt, list[int]] = {}
        for place, (span, row) in enumerate(zip(spans, rows, strict=True)):
            by_attempt.setdefault(Attempt(run_id, span.rollout_id, span.attempt_id), []).append(place)
            check_size(f"span {row.span_id}", len(row.body) + len(row.source) + len(row.name))
        numbered = await asyncio.gather(
            *(
                self._number(attempt, [(place, rows[place]) for place in places])
                for attempt, places in by_attempt.items()
            )
        )
        stored: list[int | None] = [None] * len(spans)
        for each in numbered:
            for place, sequence_id in each.sequence_ids.items():
                stored[place] = sequence_id
        token = self._database.new_token()
        documents = {
            place: self._document(Attempt(run_id, span.rollout_id, span.attempt_id), row, stored[place], token)
            for place, (span, row) in enumerate(zip(spans, rows, strict=True))
            if stored[place] is not None
        }
        try:
            inserted = (
                await self._span_inserts.ask([*documents.values()]) if documents else _Inserted(set(), frozenset())
            )
            if inserted.gone:
                raise rollouts_gone(run_id, inserted.gone)
        except BaseException:
            for attempt in by_attempt:
                self._numbers.not_kept(attempt)
            raise
        for place, document in documents.items():
            if key_of(document) in inserted.there:  # brought by another request just now
                stored[place] = None
        for attempt, each in zip(by_attempt, numbered, strict=True):
            if each.taken is not None:
                self._numbers.kept(attempt, each.taken, [rows[place].span_id for place in each.sequence_ids])
        return stored

    @in_the_loop
    async def replace_spans(self, run_id: str, spans: Sequence[Span]) -> None:
        """Write spans in place of those that are kept of the same rollout, attempt and id."""
        key = self._database.run_key(run_id)
        updates = [
            UpdateOne(
                {"_id": _id(key, span.rollout_id, span.attempt_id, span.span_id)},
                {"$set": {"body": row.body, "source": row.source}},
            )
            for span, row in zip(spans, encoded(spans), strict=True)
        ]
        await self._database.change(schema.SPANS, updates)

    @in_the_loop
    async def reserve_sequence_ids(self, run_id: str, attempts: Sequence[tuple[str, str]]) -> list[int]:
        """Return the next sequence id of each `(rollout_id, attempt_id)`."""
        places: dict[Attempt, list[int]] = {}
        for place, ids in enumerate(attempts):
            places.setdefault(Attempt(run_id, *ids), []).append(place)
        before = await asyncio.gather(*(self._numbers.take_next(attempt, len(own)) for attempt, own in places.items()))
        reserved = [0] * len(attempts)
        for last, own in zip(before, places.values(), strict=True):
            for number, place in enumerate(own, start=last.number + 1):
                reserved[place] = number
        return reserved

    @in_the_loop
    async def find_spans(
        self, run_id: str, rollout_id: str, attempt_id: str | None, query: Query
    ) -> tuple[list[Span], int]:
        """Query the spans of a rollout, or of one of its attempts."""
        key = self._database.run_key(run_id)
        db_query = query if query.sort_by in _OWN_FIELDS else Query()
        if db_query == _ALL:
            documents = await self._span_reads.ask((key, rollout_id, attempt_id))
            total = len(documents)
        else:
            spans, always = self._database.collection(schema.SPANS), {"_id": span_range.of(key, rollout_id, attempt_id)}
            documents, total = await self._database.retried(lambda: page(spans, db_query, always, _field, _PROJECTION))
        reader = SpanReader(rollout_id)
        decoded = [reader.decoded(document["_id"]["attempt"], _encoded(document)) for document in documents]
        return (decoded, total) if db_query is query else select(decoded, query)

    async def _read_all(self, reads: list[_Read]) -> list[list[dict[str, Any]]]:
        """Return all spans of each rollout or attempt, in their order."""
        ranges = [{"_id": span_range.of(*read)} for read in set(reads)]
        documents = await self._database.find(schema.SPANS, {"$or": ranges}, _PROJECTION)
        by_read: defaultdict[_Read, list[dict[str, Any]]] = defaultdict(list)
        for document in sorted(documents, key=lambda each: (each["sequence_id"], each["number"])):
            id = document["_id"]
            for attempt_id in (None, id["attempt"]):
                by_read[id["run"], id["rollout"], attempt_id].append(document)
        return [by_read[read] for read in reads]

    async def _delete_all_spans(self, run_id: str) -> None:
        of_run = {"_id": span_range.of(self._database.run_key(run_id))}
        await self._database.change(schema.SPANS, [DeleteMany(of_run)])

    async def _count_spans(self, run_id: str) -> int:
        of_run = {"_id.run": self._database.run_key(run_id)}
        return await self._database.retried(lambda: counted(self._database.collection(schema.SPANS), of_run))

    async def _number(self, attempt: Attempt, spans: Sequence[tuple[int, EncodedSpan]]) -> _Numbered:
        """Number those spans that are new, and take the numbers."""
        while True:
            before = self._numbers.last(attempt)
            there = before.spans
            if there is None:
                there = await self._present(attempt, [span.span_id for _, span in spans])
            last, sequence_ids, seen = before.number, {}, set(there)
            for place, span in spans:
                if span.span_id not in seen:
                    seen.add(span.span_id)
                    sequence_ids[place] = span.sequence_id or last + 1
                    last = max(last, sequence_ids[place])
            if not sequence_ids:
                return _Numbered(None, {})
            taken = await self._numbers.take(attempt, before, last)
            if taken is not None:
                return _Numbered(taken, sequence_ids)

    async def _present(self, attempt: Attempt, span_ids: Sequence[str]) -> frozenset[str]:
        key = self._database.run_key(attempt.run_id)
        ids = [_id(key, attempt.rollout_id, attempt.attempt_id, span_id) for span_id in dict.fromkeys(span_ids)]
        documents = await self._database.find(schema.SPANS, {"_id": {"$in": ids}}, {"_id": 1})
        return frozenset(document["_id"]["span"] for document in documents)

    async def _insert_spans(self, requests: list[list[dict[str, Any]]]) -> list[_Inserted]:
        """Insert the documents of several requests; in a replica set, each is kept as a whole or not at all.

        A rollout that was deleted after its numbers were taken may have missed what is inserted now. So a
        deletion looks for spans once more when the rollout is gone; an insertion looks for the rollout afterwards.
        One of the two comes last, and nothing is left.
        """
        documents: dict[tuple[str, ...], dict[str, Any]] = {}
        for request in requests:
            for each in request:
                documents.setdefault(key_of(each), each)
        as_one = any(len(request) > 1 for request in requests)
        there = await self._database.insert(schema.SPANS, list(documents.values()), as_one=as_one)
        gone = await self._without_rollout({key[:2] for key in documents})
        answers = []
        for request in requests:
            keys = {key_of(each): each for each in request}
            others = {key for key, each in keys.items() if key in there or documents[key] is not each}
            answers.append(_Inserted(others, frozenset(key[1] for key in keys if key[:2] in gone)))
        return answers

    async def _without_rollout(self, rollouts: set[tuple[str, ...]]) -> set[tuple[str, ...]]:
        """Return those of the rollouts, each after its run's key, that are not there; and delete their spans."""
        ids = [{"run": run, "id": rollout} for run, rollout in rollouts]
        documents = await self._database.find(schema.ROLLOUTS, {"_id": {"$in": ids}}, {"_id": 1})
        gone = rollouts - {key_of(document) for document in documents}
        await self._database.change(schema.SPANS, [DeleteMany({"_id": span_range.of(*each)}) for each in gone])
        return gone

    def _document(self, attempt: Attempt, span: EncodedSpan, sequence_id: int | None, token: str) -> dict[str, Any]:
        document = {
            "_id": _id(self._database.run_key(attempt.run_id), attempt.rollout_id, attempt.attempt_id, span.span_id),
            "number": SERVER_TIME,
            "written": token,
            "sequence_id": sequence_id,
            "trace_id": span.trace_id,
            "parent_id": span.parent_id,
            "name": span.name,
            "start_time": span.start_time,
            "end_time": span.end_time,
            "source": span.source,
            "body": span.body,
        }
        if self._database.settings.keep_seconds is not None:
            document["expires"] = expires_in(self._database.settings.keep_seconds)
        return document


def _id(key: str, rollout_id: str, attempt_id: str, span_id: str) -> dict[str, str]:
    return {"run": key, "rollout": rollout_id, "attempt": attempt_id, "span": span_id}


def _field(name: str) -> str:
    return f"_id.{name.removesuffix('_id')}" if name in ("span_id", "attempt_id") else name


def _encoded(document: dict[str, Any]) -> EncodedSpan:
    return EncodedSpan(span_id=document["_id"]["span"], **{name: document[name] for name in _FIELDS})
