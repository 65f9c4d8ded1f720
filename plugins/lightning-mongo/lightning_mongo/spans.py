"""Spans in the database. In the database's event loop only."""

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

from pymongo import DeleteMany, InsertOne, UpdateOne
from pymongo.errors import BulkWriteError

from lightning_core.concurrency import Batcher
from lightning_core.store.codec.spans import EncodedSpan, SpanReader
from lightning_core.store.query import Query, select
from lightning_core.types import Span
from lightning_mongo import schema, schema as span_range
from lightning_mongo.conditions import counted, page
from lightning_mongo.database import Database, Session
from lightning_mongo.errors import duplicates
from lightning_mongo.numbers import Attempt, Last, Numbers, rollouts_gone
from lightning_mongo.records import SERVER_TIME, check_size, expires_in

_FIELDS = ("sequence_id", "trace_id", "parent_id", "name", "start_time", "end_time", "source", "body")
_PROJECTION = dict.fromkeys((*_FIELDS, "number"), 1)
_OWN_FIELDS = {"sequence_id", "trace_id", "span_id", "attempt_id", "parent_id", "name", "start_time", "end_time", None}
"""What the database can sort by."""

_ALL = Query(sort_by="sequence_id")

_Read = tuple[str, str, str | None]
"""A run, as it is called in the database, a rollout, and an attempt; None for all of them."""


class _Numbered(NamedTuple):
    """What a request brings for one attempt."""

    taken: Last | None
    """The attempt's last number from then on; None when nothing is new."""
    sequence_ids: dict[int, int]
    """By the place in the request; without those spans that were there already."""


class _Inserted(NamedTuple):
    """What happened to the documents of a request."""

    there: set[int]
    """Which of them were there already."""
    gone: frozenset[str]
    """The rollouts that were deleted meanwhile, and their spans with them."""


class Spans:
    """The spans of all runs of a partition.

    Args:
        database: The open database.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._numbers = Numbers(database)
        self._reads: Batcher[_Read, list[dict[str, Any]]] = Batcher(self._read_all, max_size=50)
        self._inserts: Batcher[list[dict[str, Any]], _Inserted] = Batcher(self._insert_all, max_size=100)

    async def append(self, run_id: str, spans: Sequence[tuple[str, str, EncodedSpan]]) -> list[int | None]:
        """Keep spans, each with its rollout's and its attempt's id, and return their sequence ids.

        None stands for a span that was there already.

        Raises:
            NotFound: When one of the rollouts is gone.
        """
        by_attempt: dict[Attempt, list[int]] = {}
        for place, (rollout_id, attempt_id, span) in enumerate(spans):
            by_attempt.setdefault(Attempt(run_id, rollout_id, attempt_id), []).append(place)
            check_size(f"span {span.span_id}", len(span.body) + len(span.source) + len(span.name))
        numbered = await asyncio.gather(
            *(self._number(attempt, [(p, spans[p][2]) for p in places]) for attempt, places in by_attempt.items())
        )
        stored: list[int | None] = [None] * len(spans)
        for each in numbered:
            for place, sequence_id in each.sequence_ids.items():
                stored[place] = sequence_id
        places = [place for place, sequence_id in enumerate(stored) if sequence_id is not None]
        token = self._database.new_token()
        documents = [self._document(run_id, *spans[place], stored[place], token) for place in places]
        try:
            inserted = await self._inserts.ask(documents) if documents else _Inserted(set(), frozenset())
            if inserted.gone:
                raise rollouts_gone(run_id, inserted.gone)
        except BaseException:
            for attempt in by_attempt:
                self._numbers.not_kept(attempt)
            raise
        for number in inserted.there:  # brought by another request just now
            stored[places[number]] = None
        for attempt, each in zip(by_attempt, numbered, strict=True):
            if each.taken is not None:
                self._numbers.kept(attempt, each.taken, [spans[place][2].span_id for place in each.sequence_ids])
        return stored

    async def replace(self, run_id: str, spans: Sequence[tuple[str, str, EncodedSpan]]) -> None:
        """Write the bodies and sources of spans anew; those that are not there are skipped."""
        key = self._database.run_key(run_id)
        updates = [
            UpdateOne(
                {"_id": _id(key, rollout_id, attempt_id, span.span_id)},
                {"$set": {"body": span.body, "source": span.source}},
            )
            for rollout_id, attempt_id, span in spans
        ]
        await self._database.retried(lambda: self._database.bulk_write(schema.SPANS, updates))

    async def reserve(self, run_id: str, attempts: Sequence[tuple[str, str]]) -> list[int]:
        """Return the next sequence id of each attempt, and keep in mind that it is taken.

        Raises:
            NotFound: When one of the rollouts is gone.
        """
        places: dict[Attempt, list[int]] = {}
        for place, ids in enumerate(attempts):
            places.setdefault(Attempt(run_id, *ids), []).append(place)
        before = await asyncio.gather(*(self._numbers.take_next(attempt, len(own)) for attempt, own in places.items()))
        reserved = [0] * len(attempts)
        for last, own in zip(before, places.values(), strict=True):
            for number, place in enumerate(own, start=last.number + 1):
                reserved[place] = number
        return reserved

    async def find(self, run_id: str, rollout_id: str, attempt_id: str | None, query: Query) -> tuple[list[Span], int]:
        """Return one page of a rollout's or an attempt's spans, and how many match."""
        always = {"_id": span_range.of(self._database.run_key(run_id), rollout_id, attempt_id)}
        own = query if query.sort_by in _OWN_FIELDS else Query()
        spans = self._database.collection(schema.SPANS)
        if own == _ALL:
            found = await self._reads.ask((self._database.run_key(run_id), rollout_id, attempt_id))
            total = len(found)
        else:
            found, total = await self._database.retried(lambda: page(spans, own, always, _field, _PROJECTION))
        reader = SpanReader(rollout_id)
        decoded = [reader.decoded(document["_id"]["attempt"], _encoded(document)) for document in found]
        return (decoded, total) if own is query else select(decoded, query)

    async def _read_all(self, reads: list[_Read]) -> list[list[dict[str, Any]]]:
        """Return all spans of each rollout or attempt, in their order."""
        spans, ranges = self._database.collection(schema.SPANS), [{"_id": span_range.of(*read)} for read in set(reads)]
        found = await self._database.retried(lambda: spans.find({"$or": ranges}, _PROJECTION).to_list())
        by_read: defaultdict[_Read, list[dict[str, Any]]] = defaultdict(list)
        for document in sorted(found, key=lambda each: (each["sequence_id"], each["number"])):
            id = document["_id"]
            for attempt_id in (None, id["attempt"]):
                by_read[id["run"], id["rollout"], attempt_id].append(document)
        return [by_read[read] for read in reads]

    async def delete_all(self, run_id: str) -> None:
        """Delete what is left of a run."""
        spans, key = self._database.collection(schema.SPANS), self._database.run_key(run_id)
        await self._database.retried(lambda: spans.delete_many({"_id": span_range.of(key)}))

    async def count(self, run_id: str) -> int:
        """Return how many there are, at most `MAX_COUNTED`."""
        spans, of_run = self._database.collection(schema.SPANS), {"_id.run": self._database.run_key(run_id)}
        return await self._database.retried(lambda: counted(spans, of_run))

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
        key, spans = self._database.run_key(attempt.run_id), self._database.collection(schema.SPANS)
        ids = [_id(key, attempt.rollout_id, attempt.attempt_id, span_id) for span_id in dict.fromkeys(span_ids)]
        found = await self._database.retried(lambda: spans.find({"_id": {"$in": ids}}, {"_id": 1}).to_list())
        return frozenset(document["_id"]["span"] for document in found)

    async def _insert_all(self, requests: list[list[dict[str, Any]]]) -> list[_Inserted]:
        """Insert the documents of several requests.

        A rollout that was deleted after its numbers were taken may have missed what is inserted now. So a
        deletion looks for spans once more when the rollout is gone; an insertion looks for the rollout afterwards.
        One of the two comes last, and nothing is left.
        """
        there = await self._keep_all(requests)
        of_requests = [{(each["_id"]["run"], each["_id"]["rollout"]) for each in request} for request in requests]
        gone = await self._without_rollout(set[tuple[str, str]]().union(*of_requests))
        return [
            _Inserted(numbers, frozenset(rollout_id for _, rollout_id in rollouts & gone))
            for numbers, rollouts in zip(there, of_requests, strict=True)
        ]

    async def _without_rollout(self, rollouts: set[tuple[str, str]]) -> set[tuple[str, str]]:
        """Return those of the rollouts, each after its run's key, that are not there; and delete their spans."""
        ids = [{"run": run, "id": rollout} for run, rollout in rollouts]
        kept = self._database.collection(schema.ROLLOUTS)
        found = await self._database.retried(lambda: kept.find({"_id": {"$in": ids}}, {"_id": 1}).to_list())
        gone = rollouts - {(document["_id"]["run"], document["_id"]["id"]) for document in found}
        deletions = [DeleteMany({"_id": span_range.of(*each)}) for each in gone]
        await self._database.retried(lambda: self._database.bulk_write(schema.SPANS, deletions))
        return gone

    async def _keep_all(self, requests: list[list[dict[str, Any]]]) -> list[set[int]]:
        """Insert the documents of several requests; the answers say which were there already.

        In a replica set, each request is kept as a whole or not at all.
        """
        documents = [document for request in requests for document in request]
        if self._database.is_replica_set and len(documents) > 1:
            if len(requests) > 1 and not await self._insert_as_one(documents):
                return [(await self._keep_all([request]))[0] for request in requests]
            if len(requests) > 1:
                return [set() for _ in requests]
            there: dict[int, str] = {}
            while not await self._insert_as_one([each for n, each in enumerate(documents) if n not in there]):
                there = await self._there(documents)
            return [_foreign(documents, there)]
        operations = [InsertOne(document) for document in documents]
        done = await self._database.retried(lambda: self._database.bulk_write(schema.SPANS, operations))
        foreign = _foreign(documents, await self._there(documents)) if done.duplicates else set()
        answers, first = [], 0
        for request in requests:
            answers.append({number - first for number in foreign if first <= number < first + len(request)})
            first += len(request)
        return answers

    async def _insert_as_one(self, documents: Sequence[dict[str, Any]]) -> bool:
        operations = [InsertOne(document) for document in documents]

        async def write(session: Session | None) -> None:
            await self._database.bulk_write(schema.SPANS, operations, session=session)

        try:
            await self._database.as_one(write)
        except BulkWriteError as exc:
            duplicates(exc)  # whatever else it is, is raised again
            return False
        return True

    async def _there(self, documents: Sequence[dict[str, Any]]) -> dict[int, str]:
        """Return which of the documents are kept, and the token of the write that brought them."""
        spans, ids = self._database.collection(schema.SPANS), [document["_id"] for document in documents]
        found = await self._database.retried(lambda: spans.find({"_id": {"$in": ids}}, {"written": 1}).to_list())
        tokens = {tuple(document["_id"].values()): document["written"] for document in found}
        keys = enumerate(tuple(id.values()) for id in ids)
        return {number: tokens[key] for number, key in keys if key in tokens}

    def _document(
        self,
        run_id: str,
        rollout_id: str,
        attempt_id: str,
        span: EncodedSpan,
        sequence_id: int | None,
        token: str,
    ) -> dict[str, Any]:
        document = {
            "_id": _id(self._database.run_key(run_id), rollout_id, attempt_id, span.span_id),
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


def _foreign(documents: Sequence[dict[str, Any]], there: dict[int, str]) -> set[int]:
    """Return which are there by another write: what is our own, a call has brought whose answer was lost."""
    return {number for number, token in there.items() if token != documents[number]["written"]}


def _id(key: str, rollout_id: str, attempt_id: str, span_id: str) -> dict[str, str]:
    return {"run": key, "rollout": rollout_id, "attempt": attempt_id, "span": span_id}


def _field(name: str) -> str:
    return f"_id.{name.removesuffix('_id')}" if name in ("span_id", "attempt_id") else name


def _encoded(document: dict[str, Any]) -> EncodedSpan:
    return EncodedSpan(span_id=document["_id"]["span"], **{name: document[name] for name in _FIELDS})
