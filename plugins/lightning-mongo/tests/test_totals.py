"""Totals and pages, also beyond what is counted."""

import asyncio
from collections import Counter
from typing import Any

import pytest
from lightning_mongo import MongoLightningStore
from lightning_mongo.testing import Mongod
from pymongo import MongoClient

from lightning_core.lifecycle import ENDED
from lightning_core.store import LightningStore
from lightning_core.store.query import make_query, select
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


async def test_what_another_store_writes_is_counted(mongod: Mongod, partition: str) -> None:
    clock = FakeClock()
    one, other = (MongoLightningStore(mongod.uri, partition_id=partition, run_id="r", clock=clock) for _ in range(2))
    for number in range(0, 14, 2):  # two with the same time of start
        modes = ("train", "val") if number % 4 else ("val", None)
        await other.enqueue_many_rollouts(
            [EnqueueRolloutRequest(input=number + n, mode=mode) for n, mode in enumerate(modes)]
        )
        await clock.advance(1)
    for number in range(6):
        claimed = await other.dequeue_rollout()
        assert claimed is not None
        ids = {"rollout_id": claimed.rollout_id, "attempt_id": claimed.attempt.attempt_id}
        await other.add_span(Span.from_attributes(attributes={}, name=str(number), **ids))
        await other.update_attempt(claimed.rollout_id, "latest", status="succeeded" if number % 3 else "failed")
    await check(one)
    await other.delete_rollouts([claimed.rollout_id])
    await check(one)
    await asyncio.gather(one.aclose(), other.aclose())


async def test_beyond_what_is_counted_all_pages_are_read(
    mongod: Mongod, partition: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lightning_mongo.conditions.MAX_COUNTED", 5)
    monkeypatch.setattr("lightning_mongo.rollouts.MAX_COUNTED", 5)
    store = MongoLightningStore(mongod.uri, partition_id=partition, run_id="r")
    await store.enqueue_many_rollouts([EnqueueRolloutRequest(input=number) for number in range(12)])
    assert (await store.statistics())["total_rollouts"] == 5
    assert (await store.query_rollouts(limit=1)).total == 5
    assert (await store.query_rollouts(limit=0)).total == 12
    read: list[int] = []
    while True:
        page = await store.query_rollouts(limit=3, offset=len(read))
        read += [each.input for each in page]
        if len(read) >= page.total:
            break
    assert read == list(range(12))
    assert (await store.query_rollouts(offset=7)).total == (await store.query_rollouts()).total == 12
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
