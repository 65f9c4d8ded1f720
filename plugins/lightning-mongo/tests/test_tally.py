"""Totals and pages of a store that remembers what it counted, while another store writes."""

import asyncio
from collections import Counter
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from bson import Timestamp
from hypothesis import given, strategies as st
from lightning_mongo import MongoLightningStore
from lightning_mongo.tally import Block, State, find_page
from lightning_mongo.testing import Mongod
from pymongo import MongoClient

from lightning_core.lifecycle import ENDED
from lightning_core.store import LightningStore
from lightning_core.store.query import Query, make_query, select
from lightning_core.testing import FakeClock
from lightning_core.types import EnqueueRolloutRequest, Rollout, Span

OLDEST, NEWEST = ({"sort_by": "start_time", "sort_order": order} for order in ("asc", "desc"))
QUERIES: list[dict[str, Any]] = [
    *({}, OLDEST, NEWEST),
    *({"status_in": ["succeeded"]}, {"status_in": ["succeeded"], **NEWEST}),
    {"status_in": ["queuing", "failed"], "mode_in": ["val"], **OLDEST},
    {"status_in": ["failed"], "mode_in": ["val"], "filter_logic": "or"},
]


async def check(store: LightningStore) -> None:
    """Compare pages, totals and statistics with what there is."""
    found, there = await store.statistics(), list(await store.query_rollouts())
    spans = [await store.query_spans(each.rollout_id, limit=0) for each in there]
    assert found["total_rollouts"] == len(there)
    assert found["total_attempts"] == sum(each.status != "queuing" for each in there)
    assert found["total_spans"] == sum(page.total for page in spans)
    assert found["live_rollouts"] == Counter(each.status for each in there if each.status not in ENDED)
    for query in QUERIES:
        for offset in range(0, len(there) + 5, 5):
            page = await store.query_rollouts(limit=4, offset=offset, **query)
            expected, total = select(there, make_query(Rollout, limit=4, offset=offset, **query))
            assert [each.input for each in page] == [each.input for each in expected], (query, offset)
            assert page.total == total


async def end(store: LightningStore, rollout: Any, status: Any) -> None:
    for number in range(2):
        ids = {"rollout_id": rollout.rollout_id, "attempt_id": rollout.attempt.attempt_id}
        await store.add_span(Span.from_attributes(attributes={}, name=str(number), **ids))
    await store.update_attempt(rollout.rollout_id, "latest", status=status)


async def test_what_another_store_writes_is_counted(
    mongod: Mongod, partition: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lightning_mongo.tally.BLOCK", 3)
    monkeypatch.setattr("lightning_mongo.tally._OVERLAP_SECONDS", 0)
    clock = FakeClock()
    one, other = (MongoLightningStore(mongod.uri, partition_id=partition, run_id="r", clock=clock) for _ in range(2))

    async def enqueue(count: int, first: int) -> None:
        for number in range(first, first + count, 2):  # two with the same time of start
            modes = ("train", "val") if number % 4 else ("val", None)
            await other.enqueue_many_rollouts(
                [EnqueueRolloutRequest(input=number + n, mode=mode) for n, mode in enumerate(modes)]
            )
            await clock.advance(1)

    await enqueue(14, 0)
    claimed = [await other.dequeue_rollout() for _ in range(9)]
    for number, rollout in enumerate(claimed[:6]):
        await end(other, rollout, "succeeded" if number % 3 else "failed")
    await check(one)
    await asyncio.sleep(2)  # from now on, all blocks are older than what is counted anew
    await check(one)
    assert claimed[3] is not None
    await end(other, claimed[7], "failed")  # in the middle
    await other.update_rollout(claimed[3].rollout_id, mode="val")  # ended long ago
    await enqueue(6, 14)
    await check(one)
    await asyncio.sleep(2)
    for rollout in (claimed[3], claimed[0]):
        assert rollout is not None
        await other.delete_rollouts([rollout.rollout_id])
        await check(one)
    for store in (one, other):
        await store.aclose()


async def test_what_the_server_kept_waiting_for_long_is_counted(
    mongod: Mongod, partition: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lightning_mongo.tally._OVERLAP_SECONDS", 0)
    monkeypatch.setattr("lightning_mongo.database._SLOW_WRITE_SECONDS", 0.5)
    one, other = (MongoLightningStore(mongod.uri, partition_id=partition, run_id="r") for _ in range(2))
    await other.enqueue_rollout(input=0)
    claimed = await other.dequeue_rollout()
    assert claimed is not None
    ids = {"rollout_id": claimed.rollout_id, "attempt_id": claimed.attempt.attempt_id}
    await check(one)
    with MongoClient[dict[str, Any]](mongod.uri) as client:
        client.admin.command("fsync", lock=True)  # as for a backup: writes wait, and have their times already
        try:
            writes = [
                asyncio.create_task(other.enqueue_rollout(input=1)),
                asyncio.create_task(other.add_span(Span.from_attributes(attributes={}, name="late", **ids))),
            ]
            await asyncio.sleep(2.5)
            await check(one)
        finally:
            client.admin.command("fsyncUnlock")
    await asyncio.gather(*writes)
    await check(one)
    for store in (one, other):
        await store.aclose()


async def test_a_page_by_ids_does_not_look_at_all(replica_set: Mongod, partition: str) -> None:
    one, other = (MongoLightningStore(replica_set.uri, partition_id=partition, run_id="r") for _ in range(2))
    made = await other.enqueue_many_rollouts([EnqueueRolloutRequest(input=number) for number in range(500)])
    await other.aclose()
    wanted = [made[300].rollout_id, made[7].rollout_id, "none"]
    await one.get_rollout_by_id("none")
    with MongoClient[dict[str, Any]](replica_set.uri) as client:

        def looked_at() -> int:
            return int(client.admin.command("serverStatus")["metrics"]["queryExecutor"]["scanned"])

        before = looked_at()
        for limit, inputs in ((-1, [7, 300]), (1, [7])):
            found = await one.query_rollouts(rollout_id_in=wanted, status_in=["queuing"], limit=limit)
            assert [each.input for each in found] == inputs
            assert found.total == 2
        assert looked_at() - before < 250
    await one.aclose()


async def test_a_run_does_not_wait_for_the_count_of_another(
    replica_set: Mongod, partition: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lightning_mongo.tally.BLOCK", 1)
    large, small = (MongoLightningStore(replica_set.uri, partition_id=partition, run_id=name) for name in "ls")
    await large.enqueue_many_rollouts([EnqueueRolloutRequest(input=number) for number in range(500)])
    await small.enqueue_rollout(input=0)
    await small.aclose()
    counting = asyncio.create_task(large.statistics())  # with 500 requests, one after the other
    await asyncio.sleep(0.05)
    assert (await large.for_run("s").statistics())["total_rollouts"] == 1
    assert not counting.done()
    assert (await counting)["total_rollouts"] == 500
    await large.aclose()


async def test_what_an_election_has_undone_is_not_counted(
    needs_mongod: None, partition: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lightning_mongo.tally._OVERLAP_SECONDS", 0)
    with Mongod(replica_set=True) as mongod, MongoClient[dict[str, Any]](mongod.uri) as client:
        store = MongoLightningStore(mongod.uri, partition_id=partition, run_id="r")
        made = await store.enqueue_many_rollouts([EnqueueRolloutRequest(input=number) for number in range(3)])
        await asyncio.sleep(2)
        await check(store)
        # A rollback leaves no trace either.
        client["lightning"]["lightning.rollouts"].delete_one({"_id.id": made[1].rollout_id})
        client.admin.command("replSetStepDown", 1, secondaryCatchUpPeriodSecs=0, force=True)
        await check(store)  # when it was elected again
        await store.aclose()


async def test_what_ended_and_expired_between_two_questions_is_not_counted(
    mongod: Mongod, partition: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lightning_mongo.tally._OVERLAP_SECONDS", 0)
    store = MongoLightningStore(mongod.uri, partition_id=partition, run_id="r", keep_days=60 / 86_400)
    await store.enqueue_many_rollouts([EnqueueRolloutRequest(input=number) for number in range(3)])
    claimed = await store.dequeue_rollout()
    assert claimed is not None
    await asyncio.sleep(2)
    await check(store)
    await store.update_attempt(claimed.rollout_id, "latest", status="succeeded")
    with MongoClient[dict[str, Any]](mongod.uri) as client:  # as the server does when it has expired
        client["lightning"]["lightning.rollouts"].delete_one({"_id.id": claimed.rollout_id})
    await check(store)
    await store.aclose()


def test_nothing_is_taken_for_known_when_a_clock_was_set_back() -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    assert State(at, ()).is_still(State(at + timedelta(seconds=1), ()))
    assert not State(at, ()).is_still(State(at - timedelta(seconds=1), ()))


def blocks_of(items: list[SimpleNamespace], size: int) -> list[Block]:
    blocks = []
    for first in range(0, len(items), size):
        own = items[first : first + size]
        rows = [
            {"_id": {"status": each.status}, "count": 1, "earliest": each.start_time, "latest": each.start_time}
            for each in own
        ]
        blocks.append(Block(own[-1].number, rows, None))
    return blocks


def rollouts_that_start(starts: list[float], statuses: list[str]) -> list[SimpleNamespace]:
    return [
        SimpleNamespace(number=Timestamp(1, number), start_time=start, status=status)
        for number, (start, status) in enumerate(zip(starts, statuses, strict=True), start=1)
    ]


@given(
    rows=st.lists(st.tuples(st.integers(0, 12), st.sampled_from(["failed", "queuing", "running"])), max_size=40),
    size=st.integers(1, 6),
    sort_by=st.sampled_from([None, "start_time", "status"]),
    sort_order=st.sampled_from(["asc", "desc"]),
    status_in=st.none() | st.lists(st.sampled_from(["failed", "queuing"]), max_size=2),
    limit=st.integers(-1, 12),
    offset=st.integers(0, 45),
)
def test_a_page_is_found_whatever_the_order_of_starts(
    rows: list[tuple[int, str]], size: int, sort_by: Any, sort_order: Any, status_in: Any, limit: int, offset: int
) -> None:
    items = rollouts_that_start([float(start) for start, _ in rows], [status for _, status in rows])
    asked = {"sort_by": sort_by, "sort_order": sort_order, "limit": limit, "offset": offset, "status_in": status_in}
    query = make_query(Rollout, **asked)
    place = find_page(blocks_of(items, size), query)
    expected, total = select(items, query)
    assert place.total == total
    if expected:
        first, last = place.numbers["$gt"], place.numbers.get("$lte", Timestamp(2, 0))
        among = [each for each in items if first < each.number <= last]
        assert select(among, query._replace(offset=place.offset))[0] == expected


def test_a_page_leaves_out_blocks_though_starts_overlap_and_has_what_came_last() -> None:
    starts = [number + 15.0 * (number % 2) for number in range(200)]  # two servers, whose clocks differ
    blocks = blocks_of(rollouts_that_start(starts, ["queuing"] * 200), 10)
    newest = find_page(blocks, Query(sort_by="start_time", sort_order="desc", limit=10))
    assert newest.numbers == {"$gt": Timestamp(1, 170)}
    oldest = find_page(blocks, Query(sort_by="start_time", limit=10))
    assert oldest.numbers == {"$gt": Timestamp(0, 0), "$lte": Timestamp(1, 30)}
    assert find_page(blocks, Query(limit=1000)).numbers == {"$gt": Timestamp(0, 0)}
