"""Rollout records: the queue, compare-and-set, deadlines, deletion."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pymongo import DeleteMany, UpdateOne

from lightning_core.concurrency import Batcher
from lightning_core.lifecycle import RolloutRecord
from lightning_core.store.backend import Change
from lightning_core.store.codec import kept
from lightning_core.store.query import Query
from lightning_mongo import schema, schema as span_range
from lightning_mongo.conditions import MAX_COUNTED, matching, ordered, page
from lightning_mongo.database import Session, Settings, Write
from lightning_mongo.portal import MongoPart, in_the_loop
from lightning_mongo.records import NOW, PROJECTION, changed, deadline_of, decoded, inserted

Begin = Callable[[RolloutRecord], RolloutRecord]

_PAGE = 4_096
"""The most rollouts of a page that is first found in an index."""
_DELETED_TOGETHER = 200
"""How many rollouts one transaction deletes."""

_Key = tuple[str, str]
"""A run and a rollout."""


class _Write(NamedTuple):
    old: RolloutRecord
    new: RolloutRecord
    """As it is kept."""
    claim: dict[str, Any] | None = None


@dataclass(eq=False)
class _Claim:
    run_id: str
    limit: int
    begin: Begin
    request_id: str | None
    got: dict[int, RolloutRecord] = field(default_factory=dict)
    """By the place among those that it asks for: one that is lost to another process is asked for again."""

    def free_places(self) -> list[int]:
        return [place for place in range(self.limit) if place not in self.got]

    def note(self, place: int) -> dict[str, Any] | None:
        """Return what the record remembers of it."""
        return None if self.request_id is None else {"request": self.request_id, "place": place}


class RolloutPart(MongoPart):
    """The records of all runs of a partition."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._gets: Batcher[_Key, RolloutRecord | None] = Batcher(self._get_all)
        self._inserts: Batcher[Sequence[RolloutRecord], list[RolloutRecord]] = Batcher(self._insert_all, max_size=50)
        self._writes: Batcher[_Write, bool] = Batcher(self._write_all)
        self._claims: Batcher[_Claim, list[RolloutRecord]] = Batcher(self._claim_all)
        self._deadline_questions: Batcher[str, float | None] = Batcher(self._ask_deadlines)

    @in_the_loop
    async def get(self, run_id: str, rollout_id: str) -> RolloutRecord | None:
        """Return the record, or None when the run has none of this id."""
        return await self._gets.ask((run_id, rollout_id))

    @in_the_loop
    async def get_many(self, run_id: str, rollout_ids: Sequence[str]) -> list[RolloutRecord | None]:
        """Return what `get` gives for each id."""
        return await self._gets.ask_all([(run_id, rollout_id) for rollout_id in rollout_ids])

    @in_the_loop
    async def insert(self, records: Sequence[RolloutRecord]) -> list[RolloutRecord]:
        """Add new records, in this order.

        Raises:
            InvalidRequest: When an input or metadata has a value that JSON cannot hold, or is too large.
        """
        return await self._inserts.ask([kept(record, None) for record in records])

    @in_the_loop
    async def replace(self, old: RolloutRecord, new: RolloutRecord) -> bool:
        """Write `new` with the next revision if the record still has the revision of `old`."""
        return await self._writes.ask(_Write(old, kept(new, old)))

    @in_the_loop
    async def claim(
        self, run_id: str, limit: int, begin: Begin, *, request_id: str | None = None
    ) -> list[RolloutRecord]:
        """Take up to `limit` records from the head of the queue and write `begin(record)` for each."""
        return await self._claims.ask(_Claim(run_id, limit, begin, request_id))

    @in_the_loop
    async def find(self, run_id: str, query: Query) -> tuple[list[RolloutRecord], int]:
        """Query records by fields of their rollout."""
        documents, total = await self._database.retried(lambda: self._find(run_id, query))
        return [decoded(run_id, document) for document in documents], total

    async def due(self, run_id: str, now: float) -> list[RolloutRecord]:
        """Return the records whose deadline is not after `now`, the earliest first."""
        earliest = self._deadlines.known(run_id)
        return [] if earliest is not None and now < earliest else await self._due(run_id, now)

    @in_the_loop
    async def _due(self, run_id: str, now: float) -> list[RolloutRecord]:
        earliest = await self._deadline_questions.ask(run_id)
        if earliest is None or now < earliest:
            return []
        wanted = {"_id.run": self._database.run_key(run_id), "deadline": {"$exists": True, "$lte": now}}
        order = [("deadline", 1), ("number", 1)]
        documents = await self._database.find(schema.ROLLOUTS, wanted, PROJECTION, sort=order)
        return [decoded(run_id, document) for document in documents]

    @in_the_loop
    async def next_deadline(self, run_id: str) -> float | None:
        """Return a time before which no record is due."""
        return await self._deadline_questions.ask(run_id)

    @in_the_loop
    async def delete_rollouts(self, run_id: str, rollout_ids: Sequence[str]) -> int:
        """Delete rollouts with their attempts and spans."""
        deleted = 0
        ids = list(dict.fromkeys(rollout_ids))
        for first in range(0, len(ids), _DELETED_TOGETHER):
            deleted += await self._delete_some(run_id, ids[first : first + _DELETED_TOGETHER])
        return deleted

    async def _delete_all_rollouts(self, run_id: str) -> None:
        of_run = {"_id.run": self._database.run_key(run_id)}
        while found := await self._database.find(schema.ROLLOUTS, of_run, {"_id": 1}, limit=_DELETED_TOGETHER):
            await self._delete_some(run_id, [document["_id"]["id"] for document in found])

    async def _count_rollouts(self, run_id: str) -> tuple[int, int]:
        """Return how many rollouts and how many attempts there are, among the first `MAX_COUNTED` rollouts."""
        stages: list[dict[str, Any]] = [
            {"$match": {"_id.run": self._database.run_key(run_id)}},
            {"$sort": {"_id.run": 1, "number": 1}},
            {"$limit": MAX_COUNTED},
            {"$group": {"_id": None, "rollouts": {"$sum": 1}, "attempts": {"$sum": "$attempts"}}},
        ]

        async def ask() -> list[dict[str, Any]]:
            rollouts = self._database.collection(schema.ROLLOUTS)
            return await (await rollouts.aggregate(stages, hint="numbered")).to_list()

        rows = await self._database.retried(ask)
        return (rows[0]["rollouts"], rows[0]["attempts"]) if rows else (0, 0)

    # Pages

    async def _find(self, run_id: str, query: Query) -> tuple[list[dict[str, Any]], int]:
        key = self._database.run_key(run_id)
        always: dict[str, Any] = {"_id.run": key}
        for condition in query.conditions:
            if condition.field == "rollout_id" and condition.test == "in" and query.logic == "and":
                # As a whole, which the index of ids is of.
                always["_id"] = {"$in": [{"run": key, "id": each} for each in condition.value if isinstance(each, str)]}
        rollouts = self._database.collection(schema.ROLLOUTS)
        if query.sort_by not in (None, "start_time") or not 0 < query.limit <= _PAGE or "_id" in always:
            return await page(rollouts, query, always, _field, PROJECTION)
        # The page's numbers first: what is sorted and skipped is only looked at in an index.
        numbers, total = await page(rollouts, query, always, _field, {"_id": 0, "number": 1})
        of_page = {**always, "number": {"$in": [document["number"] for document in numbers]}}
        found = await rollouts.find(matching(query, of_page, _field), PROJECTION, sort=ordered(query, _field)).to_list()
        return found, total

    # Many requests in one call

    async def _get_all(self, keys: list[_Key]) -> list[RolloutRecord | None]:
        wanted = [
            {"run": self._database.run_key(run_id), "id": rollout_id} for run_id, rollout_id in dict.fromkeys(keys)
        ]
        documents = await self._database.find(schema.ROLLOUTS, {"_id": {"$in": wanted}}, PROJECTION)
        by_key = {(self._database.run_of(each["_id"]["run"]), each["_id"]["id"]): each for each in documents}
        return [decoded(key[0], by_key[key]) if key in by_key else None for key in keys]

    async def _insert_all(self, requests: list[Sequence[RolloutRecord]]) -> list[list[RolloutRecord]]:
        records: dict[_Key, RolloutRecord] = {}
        for request in requests:
            for record in request:
                records.setdefault(_key(record), record)
        documents = [
            inserted(
                self._database.run_key(record.run_id),
                record,
                token=self._database.new_token(),
                keep_seconds=self._database.settings.keep_seconds,
            )
            for record in records.values()
        ]
        as_one = any(len(request) > 1 for request in requests)
        there = await self._database.insert(schema.ROLLOUTS, documents, as_one=as_one)
        known = [(self._database.run_of(run), rollout_id) for run, rollout_id in there]
        for present in await self._get_all(known) if known else ():
            if present is not None:
                records[_key(present)] = present
        self._announce(records.values())  # what was there, too: this may have written it, and its answer was lost
        return [[records[_key(record)] for record in request] for request in requests]

    async def _write_all(self, writes: Sequence[_Write]) -> list[bool]:
        """Write each record if it has the revision that it had, in one call."""
        changes = []
        for old, new, claim in writes:
            id = {"run": self._database.run_key(old.run_id), "id": old.rollout.rollout_id}
            token, keep_seconds = self._database.new_token(), self._database.settings.keep_seconds
            update = changed(old, new, token=token, keep_seconds=keep_seconds, claim=claim)
            changes.append(Write(id, UpdateOne({"_id": id, "revision": old.revision}, update), token))
        written = await self._database.write(schema.ROLLOUTS, changes)
        self._announce([write.new for write, is_written in zip(writes, written, strict=True) if is_written])
        return written

    async def _claim_all(self, claims: list[_Claim]) -> list[list[RolloutRecord]]:
        for run_id in dict.fromkeys(claim.run_id for claim in claims):
            await self._claim_of_run(run_id, [claim for claim in claims if claim.run_id == run_id])
        return [list(claim.got.values()) for claim in claims]

    async def _claim_of_run(self, run_id: str, claims: list[_Claim]) -> None:
        """Give each claim what it was given before, or from the head of the queue.

        The head is only read; what takes a record is the write that holds while its revision is what was read.
        """
        await self._repeat(run_id, claims)
        claims = [claim for claim in claims if not claim.got]
        while takers := [(claim, place) for claim in claims for place in claim.free_places()]:
            head = await self._head(run_id, len(takers))
            taken = [
                (claim, place, _Write(record, kept(claim.begin(record), record), claim.note(place)))
                for record, (claim, place) in zip(head, takers, strict=False)
            ]
            written = await self._write_all([write for _, _, write in taken])
            for (claim, place, write), is_written in zip(taken, written, strict=True):
                if is_written:
                    claim.got[place] = write.new._replace(revision=write.old.revision + 1)
            if all(written) and len(head) < len(takers):
                return
            if not all(written):
                # Another process was faster, perhaps with the very request.
                lost = [claim for (claim, _, _), is_written in zip(taken, written, strict=True) if not is_written]
                repeated = await self._repeat(run_id, lost)
                claims = [claim for claim in claims if claim not in repeated]

    async def _repeat(self, run_id: str, claims: Sequence[_Claim]) -> list[_Claim]:
        """Give claims what their requests claimed, if that is more than they got; return those of which it is."""
        given = await self._claimed_before(run_id, [each.request_id for each in claims if each.request_id is not None])
        repeated = [claim for claim in claims if len(given.get(claim.request_id, ())) > len(claim.got)]
        for claim in repeated:
            claim.got = given[claim.request_id]
        return repeated

    async def _head(self, run_id: str, limit: int) -> list[RolloutRecord]:
        wanted = {"_id.run": self._database.run_key(run_id), "ticket": {"$exists": True}}
        documents = await self._database.find(schema.ROLLOUTS, wanted, PROJECTION, sort=[("ticket", 1)], limit=limit)
        return [decoded(run_id, document) for document in documents]

    async def _claimed_before(
        self, run_id: str, request_ids: Sequence[str]
    ) -> dict[str | None, dict[int, RolloutRecord]]:
        """Return what requests have claimed, of those records that are still there, by its place among the claims."""
        if not request_ids:
            return {}
        wanted = {
            "_id.run": self._database.run_key(run_id),
            "claims": {"$exists": True},
            "claims.request": {"$in": list(request_ids)},
        }
        documents = await self._database.find(schema.ROLLOUTS, wanted, {**PROJECTION, "claims": 1})
        given: defaultdict[str | None, dict[int, RolloutRecord]] = defaultdict(dict)
        for document in documents:
            for claim in document["claims"]:
                given[claim["request"]][claim["place"]] = decoded(run_id, document)
        return {request_id: dict(sorted(places.items())) for request_id, places in given.items()}

    async def _ask_deadlines(self, run_ids: list[str]) -> list[float | None]:
        answers: dict[str, float | None] = {}
        for run_id in dict.fromkeys(run_ids):
            asked = self._deadlines.asked(run_id)
            wanted = {"_id.run": self._database.run_key(run_id), "deadline": {"$exists": True}}
            found = await self._database.find(
                schema.ROLLOUTS, wanted, {"_id": 0, "deadline": 1}, sort=[("deadline", 1)], limit=1
            )
            answers[run_id] = found[0]["deadline"] if found else None
            self._deadlines.answered(run_id, asked, found[0]["deadline"] if found else math.inf)
        return [answers[run_id] for run_id in run_ids]

    async def _delete_some(self, run_id: str, rollout_ids: Sequence[str]) -> int:
        key = self._database.run_key(run_id)
        ids = [{"run": key, "id": rollout_id} for rollout_id in rollout_ids]
        there = await self._database.find(schema.ROLLOUTS, {"_id": {"$in": ids}}, {"_id": 1})
        found = [document["_id"] for document in there]
        if not found:
            return 0
        spans = [DeleteMany({"_id": span_range.of(key, id["id"])}) for id in found]
        notes = [UpdateOne({"_id": id}, {"$currentDate": {"changed": NOW, "at": True}}, upsert=True) for id in found]

        async def write(session: Session | None) -> None:
            # In this order, what was broken off can be repeated: the rollouts are still there.
            await self._database.bulk_write(schema.SPANS, spans, session)
            await self._database.bulk_write(schema.DELETIONS, notes, session)
            await self._database.bulk_write(schema.ROLLOUTS, [DeleteMany({"_id": {"$in": found}})], session)

        await self._database.as_one(write)
        # Those whose numbers were taken before, and that came in after the spans were deleted.
        await self._database.change(schema.SPANS, spans)
        self._listeners.tell([Change(run_id, id["id"], None, None) for id in found])
        return len(found)

    def _announce(self, records: Iterable[RolloutRecord]) -> None:
        changes = [
            Change(record.run_id, record.rollout.rollout_id, record.rollout.status, deadline_of(record))
            for record in records
        ]
        for change in changes:
            self._deadlines.written(change.run_id, change.deadline)
        self._listeners.tell(changes)


def _key(record: RolloutRecord) -> _Key:
    return record.run_id, record.rollout.rollout_id


def _field(name: str) -> str:
    return "_id.id" if name == "rollout_id" else name
