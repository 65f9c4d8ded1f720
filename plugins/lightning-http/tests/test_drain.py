"""A server that is told to stop while attempts run."""

import asyncio

import pytest
from lightning_http import LightningStoreClient, LightningStoreServer

from lightning_core.errors import RunEnded, StoreUnavailable
from lightning_core.types import EnqueueRolloutRequest


@pytest.fixture
async def busy(memory):
    """A server with one attempt under way, whose worker holds a lease, and one rollout more."""
    async with LightningStoreServer(memory, drain_seconds=30) as server:
        await memory.enqueue_many_rollouts([EnqueueRolloutRequest(input=i) for i in range(2)])
        await memory.update_worker("w-1")
        yield server


async def test_running_attempts_may_end_and_no_others_begin(busy, memory, ask):
    url = busy.url
    client = LightningStoreClient(url, retry_seconds=0.05, first_backoff_seconds=0.01)
    claimed = await client.dequeue_rollout("w-1")
    draining = asyncio.create_task(busy.drain())
    await asyncio.sleep(0)
    assert (await ask("GET", f"{url}/v1/agl/health")) == (503, {"status": "draining"})
    for call in (
        client.dequeue_rollout("w-1"),
        client.dequeue_rollout("w-1", wait_seconds=5),
        client.start_rollout("more"),
        client.start_attempt(claimed.rollout_id),
    ):
        with pytest.raises(StoreUnavailable, match="it answered 503: the store is shutting down"):
            await call
    assert (await client.enqueue_rollout("for the next server")).status == "queuing"
    results = asyncio.create_task(client.wait_for_rollouts(rollout_ids=[claimed.rollout_id]))
    await client.update_attempt(claimed.rollout_id, claimed.attempt.attempt_id, status="succeeded")
    assert [item.status for item in await results] == ["succeeded"]
    await draining
    with pytest.raises(StoreUnavailable, match="out of reach"):
        await client.statistics()
    await client.aclose()
    assert [item.status for item in await memory.query_rollouts()] == ["succeeded", "queuing", "queuing"]


async def test_worker_hears_of_the_end_of_the_run_from_a_server_that_stops_right_after_it(memory):
    async with LightningStoreServer(memory) as server:
        client = LightningStoreClient(server.url, retry_seconds=0.05, first_backoff_seconds=0.01)
        waiting = asyncio.create_task(client.dequeue_rollout("w-1", wait_seconds=None))
        await client.statistics()
        await memory.end_run()
        await server.stop()
        with pytest.raises(RunEnded, match="there is no more work"):
            await waiting
        await client.aclose()


async def test_what_does_not_end_in_time_is_left_to_its_lease_or_released(memory):
    async with LightningStoreServer(memory, drain_seconds=0.05) as server, LightningStoreClient(server.url) as client:
        await client.enqueue_many_rollouts([EnqueueRolloutRequest(input=i) for i in range(3)])
        await client.update_worker("leased")
        leased = await client.dequeue_rollout("leased")
        silent, nameless = await client.dequeue_rollout("silent"), await client.dequeue_rollout()
        await server.drain()
    statuses = {item.rollout_id: item.status for item in await memory.query_rollouts()}
    assert statuses[leased.rollout_id] == "preparing"
    assert statuses[silent.rollout_id] == statuses[nameless.rollout_id] == "requeuing"
    attempt = await memory.get_latest_attempt(silent.rollout_id)
    assert attempt.metadata == {"fault": "the store's server was stopped while it ran"}


@pytest.mark.parametrize("ends", ["they end", "it is told again"])
async def test_attempts_of_every_run_are_waited_for_until(busy, memory, ends):
    async with LightningStoreClient(busy.url, run_id="run-2") as client:
        started = await client.start_rollout("a")
        draining = asyncio.create_task(busy.drain())
        await client.statistics()
        assert not draining.done()
        if ends == "they end":
            await client.update_attempt(started.rollout_id, "latest", status="failed")
        else:
            busy.hurry()
        await draining
