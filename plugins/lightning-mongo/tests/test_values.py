"""What the database keeps of values: everything that JSON can hold. The rest is refused as a whole."""

import pytest
from lightning_mongo import MongoLightningStore
from lightning_mongo.records import MAX_STATE, MAX_TASK
from lightning_mongo.testing import Mongod

from lightning_core.errors import InvalidRequest
from lightning_core.types import EnqueueRolloutRequest, RolloutConfig, Span


@pytest.mark.slow
async def test_what_is_too_large_is_refused_and_nothing_of_its_request_is_kept(mongod: Mongod, partition: str) -> None:
    store = MongoLightningStore(mongod.uri, partition_id=partition)
    large = "x" * (17 * 1024 * 1024)
    with pytest.raises(
        InvalidRequest,
        match=r"the input, metadata and config of rollout ro-[0-9a-f]+: 17,.* at most 14,680,064 of it, .*; keep",
    ):
        await store.enqueue_many_rollouts([EnqueueRolloutRequest(input="small"), EnqueueRolloutRequest(input=large)])
    assert (await store.statistics())["total_rollouts"] == 0
    started = await store.start_rollout("a")
    ids = {"rollout_id": started.rollout_id, "attempt_id": started.attempt.attempt_id}
    spans = [Span.from_attributes(attributes={"text": text}, **ids) for text in ("small", large)]
    with pytest.raises(InvalidRequest, match=r"span .*: 17,"):
        await store.add_many_spans(spans)
    with pytest.raises(InvalidRequest, match="state 'apo': 17,"):
        await store.save_state("apo", large)
    with pytest.raises(InvalidRequest, match=r"the attempts of rollout ro-.*: 17,"):
        await store.update_attempt(started.rollout_id, "latest", metadata={"text": large})
    assert (await store.statistics())["total_spans"] == 0
    await store.aclose()


@pytest.mark.slow
async def test_the_largest_rollout_can_be_claimed_and_ended(standalone: Mongod, partition: str) -> None:
    store = MongoLightningStore(standalone.uri, partition_id=partition)
    task, text = "x" * (MAX_TASK - 100), "y" * (MAX_STATE - 2000)
    again = RolloutConfig(max_attempts=5, retry_condition=["failed"])
    kept = await store.enqueue_rollout(task, config=again)
    for number in range(4):
        claimed = await store.dequeue_rollout("w", request_id=f"{number}{'r' * 400}")
        assert claimed is not None
        await store.update_attempt(kept.rollout_id, "latest", status="failed", metadata={"text": text})
        text = ""
    await store.dequeue_rollout("w")
    with pytest.raises(InvalidRequest, match=r"the attempts of rollout ro-.*: 1,8.* at most 1,835,008"):
        await store.update_attempt(kept.rollout_id, "latest", metadata={"text": "z" * 10_000})
    await store.update_attempt(kept.rollout_id, "latest", status="succeeded")
    found = await store.get_rollout_by_id(kept.rollout_id)
    assert found is not None
    assert (found.input, found.status) == (task, "succeeded")
    await store.aclose()
