"""Rollout records: the queue, compare-and-set, deadlines, deletion. In the database's event loop only."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

from pymongo import DeleteMany, InsertOne, UpdateOne
from pymongo.errors import BulkWriteError

from lightning_core.concurrency import Batcher
from lightning_core.lifecycle import RolloutRecord
from lightning_core.store.backend import Change
from lightning_core.store.codec.records import kept
from lightning_core.store.query import Query
from lightning_core.store.waits import Listeners
from lightning_mongo import schema, schema as span_range
from lightning_mongo.changes import Deadlines
from lightning_mongo.conditions import MAX_COUNTED, matching, ordered, page
from lightning_mongo.database import Database, Operation, Session, Written
from lightning_mongo.errors import duplicates
from lightning_mongo.records import NOW, PROJECTION, changed, deadline_of, decoded, inserted

Begin = Callable[[RolloutRecord], RolloutRecord]

_PAGE = 4_096
"""The most rollouts of a page that is first found in an index."""
_DELETED_TOGETHER = 200
"""How many rollouts one transaction deletes."""

_Key = tuple[str, str]
"""A run and a rollout."""


class _New(NamedTuple):
    key: _Key
    record: RolloutRecord
    """As it is kept."""
    document: dict[str, Any]


class _Write(NamedTuple):
    old: RolloutRecord
    new: RolloutRecord
    """As it is kept."""
    claim: dict[str, Any] | None = None


class _Claim(NamedTuple):
    run_id: str
    limit: int
    begin: Begin
    request_id: str | None


class Rollouts:
    """The records of all runs of a partition.

    Args:
        database: The open database.
        listeners: Are told of each change.
        deadlines: Follow each change.
    """

    def __init__(self, database: Database, listeners: Listeners, deadlines: Deadlines) -> None:
        self._database = database
        self._listeners = listeners
        self._deadlines = deadlines
        self._gets: Batcher[_Key, RolloutRecord | None] = Batcher(self._get_all)
        self._inserts: Batcher[_New, RolloutRecord] = Batcher(self._insert_all)
        self._writes: Batcher[_Write, bool] = Batcher(self._write_all)
        self._claims: Batcher[_Claim, list[RolloutRecord]] = Batcher(self._claim_all)
        self._deadline_questions: Batcher[str, float | None] = Batcher(self._ask_deadlines)

    async def get(self, run_id: str, rollout_id: str) -> RolloutRecord | None:
        """Return a record, or None when there is none."""
        return await self._gets.ask((run_id, rollout_id))

    async def get_many(self, run_id: str, rollout_ids: Sequence[str]) -> list[RolloutRecord | None]:
        """Return records, None for each that there is not."""
        return await self._gets.ask_all([(run_id, rollout_id) for rollout_id in rollout_ids])

    async def insert(self, records: Sequence[RolloutRecord]) -> list[RolloutRecord]:
        """Add new records, in this order, and return what is kept under their ids."""
        own = [self._new(kept(record, None)) for record in records]  # all of them, before anything is written
        if len(own) < 2 or not self._database.is_replica_set:
            return await self._inserts.ask_all(own)
        while True:
            present = await self._present(own)
            new = list({each.key: each for each in own if each.key not in present}.values())
            if new and not await self._insert_as_one(new):
                continue  # another caller has made one of them since
            present.update({each.key: each.record for each in new})
            answers = [present[each.key] for each in own]
            self._announce(answers)  # what was there, too: this may have written it, and its answer was lost
            return answers

    async def replace(self, old: RolloutRecord, new: RolloutRecord) -> bool:
        """Write `new` with the next revision if the record still has the revision of `old`."""
        return await self._writes.ask(_Write(old, kept(new, old)))

    async def claim(self, run_id: str, limit: int, begin: Begin, request_id: str | None) -> list[RolloutRecord]:
        """Take up to `limit` records from the head of the queue and write `begin(record)` for each."""
        return await self._claims.ask(_Claim(run_id, limit, begin, request_id))

    async def find(self, run_id: str, query: Query) -> tuple[list[RolloutRecord], int]:
        """Return one page of what matches, and how many match."""
        found, total = await self._database.retried(partial(self._find, run_id, query))
        return [decoded(run_id, document) for document in found], total

    async def due(self, run_id: str, now: float) -> list[RolloutRecord]:
        """Return the records whose deadline is not after `now`, the earliest first."""
        earliest = await self.next_deadline(run_id)
        if earliest is None or now < earliest:
            return []
        wanted = {"_id.run": self._database.run_key(run_id), "deadline": {"$exists": True, "$lte": now}}
        rollouts = self._database.collection(schema.ROLLOUTS)
        found = await self._database.retried(
            lambda: rollouts.find(wanted, PROJECTION, sort=[("deadline", 1), ("number", 1)]).to_list()
        )
        return [decoded(run_id, document) for document in found]

    async def next_deadline(self, run_id: str) -> float | None:
        """Return when the first record of the run is due."""
        return await self._deadline_questions.ask(run_id)

    async def delete(self, run_id: str, rollout_ids: Sequence[str]) -> int:
        """Delete rollouts with all that belongs to them, and return how many there were."""
        deleted = 0
        ids = list(dict.fromkeys(rollout_ids))
        for first in range(0, len(ids), _DELETED_TOGETHER):
            deleted += await self._delete_some(run_id, ids[first : first + _DELETED_TOGETHER])
        return deleted

    async def delete_all(self, run_id: str) -> None:
        """Delete all rollouts of a run."""
        rollouts, key = self._database.collection(schema.ROLLOUTS), self._database.run_key(run_id)
        while True:
            found = await self._database.retried(
                lambda: rollouts.find({"_id.run": key}, {"_id": 1}).limit(_DELETED_TOGETHER).to_list()
            )
            if not found:
                return
            await self._delete_some(run_id, [document["_id"]["id"] for document in found])

    async def count(self, run_id: str) -> tuple[int, int]:
        """Return how many rollouts and how many attempts there are, among the first `MAX_COUNTED` rollouts."""
        rollouts, of_run = self._database.collection(schema.ROLLOUTS), {"_id.run": self._database.run_key(run_id)}
        stages: list[dict[str, Any]] = [
            {"$match": of_run},
            {"$sort": {"_id.run": 1, "number": 1}},
            {"$limit": MAX_COUNTED},
            {"$group": {"_id": None, "rollouts": {"$sum": 1}, "attempts": {"$sum": "$attempts"}}},
        ]

        async def ask() -> list[dict[str, Any]]:
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
        rollouts = self._database.collection(schema.ROLLOUTS)
        found = await self._database.retried(lambda: rollouts.find({"_id": {"$in": wanted}}, PROJECTION).to_list())
        by_key = {self._key_in(document): document for document in found}
        return [decoded(key[0], by_key[key]) if key in by_key else None for key in keys]

    async def _insert_all(self, asked: list[_New]) -> list[RolloutRecord]:
        new = list({each.key: each for each in asked}.values())
        operations = [InsertOne(each.document) for each in new]
        done = await self._keep(operations)
        made = {each.key: each.record for number, each in enumerate(new) if number not in done.duplicates}
        if done.duplicates:
            # Or this call has written them, and was repeated after its answer was lost.
            made.update(await self._present([new[number] for number in done.duplicates]))
        self._announce(made.values())
        return [made[each.key] for each in asked]

    async def _insert_as_one(self, new: Sequence[_New]) -> bool:
        operations = [InsertOne(each.document) for each in new]

        async def write(session: Session | None) -> None:
            await self._database.bulk_write(schema.ROLLOUTS, operations, session=session)

        try:
            await self._database.as_one(write)
        except BulkWriteError as exc:
            duplicates(exc)  # whatever else it is, is raised again
            return False
        return True

    async def _keep(self, operations: Sequence[Operation]) -> Written:
        return await self._database.retried(lambda: self._database.bulk_write(schema.ROLLOUTS, operations))

    async def _present(self, new: Sequence[_New]) -> dict[_Key, RolloutRecord]:
        keys = [each.key for each in new]
        found = await self._get_all(keys)
        return {key: record for key, record in zip(keys, found, strict=True) if record is not None}

    async def _write_all(self, writes: Sequence[_Write]) -> list[bool]:
        """Write each record if it has the revision that it had, in one call."""
        tokens = [self._database.new_token() for _ in writes]
        ids = [
            {"run": self._database.run_key(write.old.run_id), "id": write.old.rollout.rollout_id} for write in writes
        ]
        operations = [
            UpdateOne({"_id": id, "revision": write.old.revision}, self._changed(write, token))
            for id, write, token in zip(ids, writes, tokens, strict=True)
        ]
        done = await self._keep(operations)
        written = [True] * len(writes)
        if done.matched < len(writes):
            # The server says how many have failed, but not which. Or the call was repeated after its answer was lost.
            # Who has written again after us makes us believe that we lost; then we look, and decide anew.
            rollouts = self._database.collection(schema.ROLLOUTS)
            found = await self._database.retried(lambda: rollouts.find({"_id": {"$in": ids}}, {"written": 1}).to_list())
            left = {document["written"] for document in found}
            written = [token in left for token in tokens]
        self._announce([write.new for write, is_written in zip(writes, written, strict=True) if is_written])
        return written

    async def _claim_all(self, claims: list[_Claim]) -> list[list[RolloutRecord]]:
        by_run: defaultdict[str, list[int]] = defaultdict(list)
        for number, claim in enumerate(claims):
            by_run[claim.run_id].append(number)
        answers: list[list[RolloutRecord]] = [[] for _ in claims]
        for run_id, numbers in by_run.items():
            for number, answer in zip(
                numbers, await self._claim_of_run(run_id, [claims[number] for number in numbers]), strict=True
            ):
                answers[number] = answer
        return answers

    async def _claim_of_run(self, run_id: str, claims: list[_Claim]) -> list[list[RolloutRecord]]:
        """Give each claim what it was given before, or from the head of the queue.

        The head is only read; what takes a record is the write that holds while its revision is what was read.
        """
        again = await self._claimed_before(
            run_id, [claim.request_id for claim in claims if claim.request_id is not None]
        )
        answers = [again.get(claim.request_id, []) if claim.request_id is not None else [] for claim in claims]
        open_claims = [number for number, claim in enumerate(claims) if not answers[number] and claim.limit > 0]
        places: list[set[int]] = [set() for _ in claims]
        """Which of those that it asks for a claim has got: one that is lost to another process is asked for again."""
        lacking = sum(claims[number].limit for number in open_claims)
        while lacking > 0:
            head = await self._head(run_id, lacking)
            takers = (number for number in open_claims for _ in range(claims[number].limit - len(answers[number])))
            taken: list[tuple[int, int, _Write]] = []
            free = [
                iter([p for p in range(claim.limit) if p not in used])
                for claim, used in zip(claims, places, strict=True)
            ]
            for record, number in zip(head, takers, strict=False):
                request_id, place = claims[number].request_id, next(free[number])
                claim = None if request_id is None else {"request": request_id, "place": place}
                taken.append((number, place, _Write(record, kept(claims[number].begin(record), record), claim)))
            written = await self._write_all([write for _, _, write in taken])
            for (number, place, write), is_written in zip(taken, written, strict=True):
                if is_written:
                    places[number].add(place)
                    answers[number].append(write.new._replace(revision=write.old.revision + 1))
            if all(written) and len(head) < lacking:
                break
            if not all(written):
                # Another process was faster, perhaps with the very request.
                lost = [
                    claims[number].request_id for (number, _, _), won in zip(taken, written, strict=True) if not won
                ]
                given = await self._claimed_before(run_id, [each for each in lost if each is not None])
                for number in open_claims:
                    request_id = claims[number].request_id
                    if request_id is not None and len(given.get(request_id, ())) > len(answers[number]):
                        answers[number] = given[request_id]
                        open_claims = [each for each in open_claims if each != number]
            lacking = sum(claims[number].limit - len(answers[number]) for number in open_claims)
        return answers

    async def _head(self, run_id: str, limit: int) -> list[RolloutRecord]:
        wanted = {"_id.run": self._database.run_key(run_id), "ticket": {"$exists": True}}
        rollouts = self._database.collection(schema.ROLLOUTS)
        found = await self._database.retried(
            lambda: rollouts.find(wanted, PROJECTION, sort=[("ticket", 1)], limit=limit).to_list()
        )
        return [decoded(run_id, document) for document in found]

    async def _claimed_before(self, run_id: str, request_ids: Sequence[str]) -> dict[str, list[RolloutRecord]]:
        """Return what requests have claimed, of those records that are still there, in the order of the claims."""
        if not request_ids:
            return {}
        wanted = {
            "_id.run": self._database.run_key(run_id),
            "claims": {"$exists": True},
            "claims.request": {"$in": list(request_ids)},
        }
        rollouts = self._database.collection(schema.ROLLOUTS)
        found = await self._database.retried(lambda: rollouts.find(wanted, {**PROJECTION, "claims": 1}).to_list())
        given: defaultdict[str, dict[int, RolloutRecord]] = defaultdict(dict)
        for document in found:
            for claim in document["claims"]:
                given[claim["request"]][claim["place"]] = decoded(run_id, document)
        return {request_id: [places[place] for place in sorted(places)] for request_id, places in given.items()}

    async def _ask_deadlines(self, run_ids: list[str]) -> list[float | None]:
        answers: dict[str, float | None] = {}
        for run_id in dict.fromkeys(run_ids):
            question = self._deadlines.ask(run_id)
            try:
                at = await self._database.retried(partial(self._earliest, run_id))
            except BaseException:
                self._deadlines.answered(run_id, question, at=None, failed=True)
                raise
            self._deadlines.answered(run_id, question, at=at)
            answers[run_id] = at
        return [answers[run_id] for run_id in run_ids]

    async def _earliest(self, run_id: str) -> float | None:
        found = await self._database.collection(schema.ROLLOUTS).find_one(
            {"_id.run": self._database.run_key(run_id), "deadline": {"$exists": True}},
            {"_id": 0, "deadline": 1},
            sort=[("deadline", 1)],
        )
        return None if found is None else found["deadline"]

    async def _delete_some(self, run_id: str, rollout_ids: Sequence[str]) -> int:
        key, rollouts = self._database.run_key(run_id), self._database.collection(schema.ROLLOUTS)
        ids = [{"run": key, "id": rollout_id} for rollout_id in rollout_ids]
        there = await self._database.retried(lambda: rollouts.find({"_id": {"$in": ids}}, {"_id": 1}).to_list())
        found = [document["_id"] for document in there]
        if not found:
            return 0
        spans = [DeleteMany({"_id": span_range.of(key, id["id"])}) for id in found]
        notes = [UpdateOne({"_id": id}, {"$currentDate": {"changed": NOW, "at": True}}, upsert=True) for id in found]

        async def write(session: Session | None) -> None:
            # In this order, what was broken off can be repeated: the rollouts are still there.
            await self._database.bulk_write(schema.SPANS, spans, session=session)
            await self._database.bulk_write(schema.DELETIONS, notes, session=session)
            await self._database.bulk_write(schema.ROLLOUTS, [DeleteMany({"_id": {"$in": found}})], session=session)

        await self._database.as_one(write)
        # Those whose numbers were taken before, and that came in after the spans were deleted.
        await self._database.retried(lambda: self._database.bulk_write(schema.SPANS, spans))
        self._listeners.tell([Change(run_id, id["id"], None, None) for id in found])
        return len(found)

    # Documents

    def _new(self, record: RolloutRecord) -> _New:
        document = inserted(
            self._database.run_key(record.run_id),
            record,
            token=self._database.new_token(),
            keep_seconds=self._database.settings.keep_seconds,
        )
        return _New((record.run_id, record.rollout.rollout_id), record, document)

    def _changed(self, write: _Write, token: str) -> dict[str, Any]:
        return changed(
            write.old,
            write.new,
            token=token,
            keep_seconds=self._database.settings.keep_seconds,
            claim=write.claim,
        )

    def _key_in(self, document: dict[str, Any]) -> _Key:
        return self._database.run_of(document["_id"]["run"]), document["_id"]["id"]

    def _announce(self, records: Iterable[RolloutRecord]) -> None:
        changes = [
            Change(record.run_id, record.rollout.rollout_id, record.rollout.status, deadline_of(record))
            for record in records
        ]
        for change in changes:
            self._deadlines.written(change.run_id, change.deadline)
        self._listeners.tell(changes)


def _field(name: str) -> str:
    return "_id.id" if name == "rollout_id" else name
