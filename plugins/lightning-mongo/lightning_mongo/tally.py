"""How many rollouts and spans there are, and where pages begin, without counting all of them each time.

A process remembers how many rollouts there are in each block of numbers. When it is asked, it counts those blocks anew
in which something was written since, as an index of the database says. Spans never change, so it counts those that came
since. Nothing is kept in the database that could differ from the documents. A deletion leaves a mark, after which all
is counted again.
"""

import asyncio
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime
from itertools import accumulate
from typing import Any, Final, NamedTuple

from bson import Timestamp

from lightning_core.concurrency import Batcher
from lightning_core.store.query import Query
from lightning_mongo import schema
from lightning_mongo.conditions import counted
from lightning_mongo.database import Database

_OVERLAP_SECONDS: Final = 150
"""What bears a time may be seen as much later.

By default the server undoes transactions of more than a minute, and looks for them twice a minute, so one may live
for 90 s. A writer that waited for half a minute leaves the mark of a deletion.
"""

BLOCK: Final = 4_096
"""How many rollouts are in a block."""

_GROUP: Final = {
    "_id": {"status": "$status", "mode": "$mode"},
    "count": {"$sum": 1},
    "attempts": {"$sum": "$attempts"},
    "earliest": {"$min": "$start_time"},
    "latest": {"$max": "$start_time"},
    "last": {"$max": "$number"},
    "expires": {"$min": "$expires"},
}


class Block(NamedTuple):
    """What there is of some numbers: from that after the last one of the block before up to its own."""

    last: Timestamp
    rows: list[dict[str, Any]]
    """As the database has grouped and counted them."""
    expires: datetime | None
    """Up to when none of it is deleted by the server."""

    @property
    def size(self) -> int:
        """How many there are of all groups."""
        return sum(row["count"] for row in self.rows)


class Page(NamedTuple):
    """The rollouts that a page is among, and how many of them come before it."""

    total: int
    """How many match on all pages."""
    numbers: dict[str, Timestamp]
    """The condition on their numbers. It has no end where the last block is among them: more may have come."""
    offset: int


class State(NamedTuple):
    """What was so when a run was looked at."""

    at: datetime
    """A time of the server; what was written before is known."""
    epoch: tuple[Any, ...]
    """Of the server, its election and the deletions; when it is another one, all is counted anew."""

    def is_still(self, now: "State") -> bool:
        """Whether what was counted then is known to be there now."""
        age = (now.at - self.at).total_seconds()  # less than 0 where a clock was set back
        return self.epoch == now.epoch and 0 <= age < schema.DELETIONS_KEPT_SECONDS / 2

    def settled(self) -> Timestamp:
        """Return a number and time before which nothing that was not seen then can appear any more."""
        return Timestamp(int(self.at.timestamp()) - _OVERLAP_SECONDS, 0)


async def state_of(database: Database, key: str) -> State:
    """Return the state of a run."""
    deletions = database.collection(schema.DELETIONS)
    hello, deleted = await asyncio.gather(
        database.hello(), deletions.find_one({"_id": schema.last_deletion(key)}, {"written": 1})
    )
    # Another server, or the same one after a crash or an election, may not have all that was read before. Nothing is
    # taken for known behind a mongos, which does not say who is there, and where what ends expires between two looks.
    keep_seconds = database.settings.keep_seconds
    is_short = keep_seconds is not None and keep_seconds < schema.DELETIONS_KEPT_SECONDS
    is_blind = is_short or hello.get("msg") == "isdbgrid"
    server = object() if is_blind else hello.get("topologyVersion", {}).get("processId")
    return State(hello["localTime"], (server, hello.get("electionId"), deleted and deleted["written"]))


class _Settled(NamedTuple):
    """What has been counted of a run's spans."""

    state: State
    expires: datetime | None
    """Up to when none of them is deleted by the server."""
    until: Timestamp
    """The number up to which they were counted."""
    spans: int


class SpanTotals:
    """Counts the spans of each run: those that came since it was asked last.

    Args:
        database: The open database.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._known: dict[str, _Settled] = {}

    async def count(self, key: str) -> int:
        """Return how many a run has."""
        spans = self._database.collection(schema.SPANS)
        now = await state_of(self._database, key)
        first = await spans.find_one({"expires": {"$exists": True}}, {"expires": 1}, sort=[("expires", 1)])
        known = self._known.get(key)
        if known is None or not known.state.is_still(now) or (known.expires is not None and known.expires <= now.at):
            known = _Settled(now, None, Timestamp(0, 0), 0)
        until = max(known.until, now.settled())
        came, newest = await asyncio.gather(
            counted(spans, {"_id.run": key, "number": {"$gt": known.until, "$lte": until}}),
            counted(spans, {"_id.run": key, "number": {"$gt": until}}),
        )
        settled = known.spans + came
        self._known[key] = _Settled(now, None if first is None else first["expires"], until, settled)
        return settled + newest


class Tally:
    """Counts the rollouts of each run, by status and mode.

    Args:
        database: The open database.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._known: dict[str, tuple[State, list[Block]]] = {}
        self._questions: defaultdict[str, Batcher[str, list[Block]]] = defaultdict(lambda: Batcher(self._look_for_all))
        """Of each run, so that none waits for the count of another."""

    async def blocks(self, run_id: str) -> list[Block]:
        """Return the blocks of a run, in the order of the numbers."""
        key = self._database.run_key(run_id)
        return await self._questions[key].ask(key)

    async def rows(self, run_id: str) -> list[dict[str, Any]]:
        """Return the rows of all blocks of a run."""
        return [row for block in await self.blocks(run_id) for row in block.rows]

    async def _look_for_all(self, keys: list[str]) -> list[list[Block]]:
        return [await self._look(keys[0])] * len(keys)

    async def _look(self, key: str) -> list[Block]:
        known, state = self._known.get(key), self._database.retried(lambda: state_of(self._database, key))
        if known is None:
            now, blocks = await state, None
        else:
            now, written = await asyncio.gather(state, self._written(key, known[0].settled()))
            blocks = await self._renewed(key, known[1], written, now.at) if known[0].is_still(now) else None
        if blocks is None:
            blocks = await self._counted(key, Timestamp(0, 0))
        self._known[key] = now, blocks
        return blocks

    async def _renewed(self, key: str, known: list[Block], written: list[dict[str, Any]], now: datetime) -> list[Block]:
        blocks = list(known)
        lasts = [block.last for block in blocks]
        stale = {place for place, block in enumerate(blocks) if block.expires is not None and block.expires <= now}
        goes_on = False
        for each in written:
            end = bisect_left(lasts, each["last"])
            stale.update(range(bisect_left(lasts, each["first"]), min(end + 1, len(blocks))))
            goes_on = goes_on or end == len(blocks)
        new: list[Block] = []
        if goes_on:
            if blocks and blocks[-1].size < BLOCK:
                blocks.pop()
            new = await self._counted(key, _after(blocks, len(blocks)))
        places = [place for place in sorted(stale) if place < len(blocks)]
        rows = await asyncio.gather(*(self._rows(key, _after(blocks, n), blocks[n].last) for n in places))
        for place, own in zip(places, rows, strict=True):
            blocks[place] = _block(blocks[place].last, own)
        return [block for block in blocks if block.rows] + new

    async def _counted(self, key: str, after: Timestamp) -> list[Block]:
        """Count all that come after a number."""
        blocks: list[Block] = []
        while rows := await self._rows(key, after, None):
            block = _block(max(row["last"] for row in rows), rows)
            blocks.append(block)
            if block.size < BLOCK:
                break
            after = block.last
        return blocks

    async def _rows(self, key: str, after: Timestamp, last: Timestamp | None) -> list[dict[str, Any]]:
        """Count those of one block; without its last number, as many as a block has."""
        numbers = {"$gt": after} if last is None else {"$gt": after, "$lte": last}
        stages: list[dict[str, Any]] = [{"$match": {"_id.run": key, "number": numbers}}]
        if last is None:
            stages += [{"$sort": {"_id.run": 1, "number": 1}}, {"$limit": BLOCK}]
        return await self._aggregated([*stages, {"$group": _GROUP}], "numbered")

    async def _written(self, key: str, since: Timestamp) -> list[dict[str, Any]]:
        """Return the first and the last number of those of each second of which one was written since."""
        first_and_last = {"first": {"$min": "$number"}, "last": {"$max": "$number"}}
        stages: list[dict[str, Any]] = [
            {"$match": {"_id.run": key, "changed": {"$gte": since}}},
            {"$group": {"_id": {"$tsSecond": "$number"}, **first_and_last}},
        ]
        return await self._aggregated(stages, "written")

    async def _aggregated(self, stages: list[dict[str, Any]], index: str) -> list[dict[str, Any]]:
        async def ask() -> list[dict[str, Any]]:
            rollouts = self._database.collection(schema.ROLLOUTS)
            return await (await rollouts.aggregate(stages, hint=index)).to_list()

        return await self._database.retried(ask)


def _block(last: Timestamp, rows: list[dict[str, Any]]) -> Block:
    expires = min((row["expires"] for row in rows if row["expires"] is not None), default=None)
    return Block(last, rows, expires)


def _after(blocks: Sequence[Block], place: int) -> Timestamp:
    """Return the number after which a block begins."""
    return blocks[place - 1].last if place > 0 else Timestamp(0, 0)


_Bound = tuple[float, int]
"""A value to sort by, and the place of the block, which decides between equal ones."""


class _Part(NamedTuple):
    """What matches in one block, in the query's order."""

    place: int
    size: int
    low: _Bound
    """None comes before."""
    high: _Bound


def find_page(blocks: Sequence[Block], query: Query) -> Page:
    """Return where a page is: without the blocks that come before it or after it as a whole.

    Args:
        blocks: Of rollouts, by status and mode, with the bounds of their start times.
        query: Which rollouts, in which order; its conditions are on the status and the mode.
    """
    parts = []
    for place, block in enumerate(blocks):
        rows = [row for row in block.rows if query.matches(row["_id"], dict.get)]
        if rows:
            low, high = float("-inf"), float("inf")
            if query.sort_by is None:
                low, high = place, place
            elif query.sort_by == "start_time":
                low, high = min(row["earliest"] for row in rows), max(row["latest"] for row in rows)
            if query.sort_order == "desc" and query.sort_by is not None:
                low, high = -high, -low
            parts.append(_Part(place, sum(row["count"] for row in rows), (low, place), (high, place)))
    total = sum(part.size for part in parts)
    if query.limit == 0 or query.offset >= total:
        return Page(total, {}, 0)
    lows, begun = _added_up((part.low, part.size) for part in parts)
    highs, ended = _added_up((part.high, part.size) for part in parts)
    end = total if query.limit == -1 else query.offset + query.limit
    is_before = [begun[bisect_right(lows, part.high)] <= query.offset for part in parts]
    is_behind = [ended[bisect_left(highs, part.low)] >= end for part in parts]
    among = [n for n in range(len(parts)) if not is_before[n] and not is_behind[n]]
    before = sum(part.size for n, part in enumerate(parts) if is_before[n] and not among[0] < n < among[-1])
    numbers = {"$gt": _after(blocks, parts[among[0]].place)}
    last = parts[among[-1]].place
    if last < len(blocks) - 1:
        numbers["$lte"] = blocks[last].last
    return Page(total, numbers, query.offset - before)


def _added_up(sizes: Iterable[tuple[_Bound, int]]) -> tuple[list[_Bound], list[int]]:
    """Return the bounds in their order, and how many there are up to each, after a 0."""
    ordered = sorted(sizes)
    return [bound for bound, _ in ordered], [0, *accumulate(size for _, size in ordered)]
