"""Totals and pages, also beyond what is counted."""

from typing import Any

import pytest
from lightning_mongo import MongoLightningStore
from lightning_mongo.testing import Mongod
from pymongo import MongoClient

from lightning_core.types import EnqueueRolloutRequest


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
