"""The memory store keeps the promises of every store, and its own."""

import asyncio
import threading
from itertools import chain

from lightning_core import lifecycle
from lightning_core.errors import StoreClosed
from lightning_core.lifecycle import RolloutRecord
from lightning_core.store import InMemoryLightningStore, LightningStore
from lightning_core.store.memory import MemoryBackend
from lightning_core.testing import FakeClock, StoreSuite
from lightning_core.types import EnqueueRolloutRequest, Rollout, RolloutConfig, Span


class TestInMemoryLightningStore(StoreSuite):
    async def make_store(self, *, clock: FakeClock, run_id: str) -> LightningStore:
        return InMemoryLightningStore(clock=clock, run_id=run_id)


async def test_a_store_makes_its_own_run_id_and_keeps_real_time() -> None:
    one, two = InMemoryLightningStore(), InMemoryLightningStore()
    assert one.run_id != two.run_id
    assert await one.dequeue_rollout(wait_seconds=0.001) is None
    assert (await one.statistics())["name"] == "InMemoryLightningStore"
    assert one.capabilities == {"thread_safe": True, "async_safe": True, "zero_copy": True, "otlp_traces": False}


async def test_threads_with_their_own_loops_work_off_one_queue_together() -> None:
    store = InMemoryLightningStore()

    async def work(worker_id: str) -> list[int]:
        done: list[int] = []
        while (claimed := await store.dequeue_rollout(worker_id, wait_seconds=None)) is not None:
            if claimed.input is None:
                return done
            rollout_id, attempt_id = claimed.rollout_id, claimed.attempt.attempt_id
            for _ in range(3):
                await store.add_span(Span.from_attributes(attributes={}, rollout_id=rollout_id, attempt_id=attempt_id))
            await store.update_attempt(rollout_id, attempt_id, status="succeeded")
            done.append(claimed.input)
        return done

    threads = [asyncio.create_task(asyncio.to_thread(asyncio.run, work(f"w-{n}"))) for n in range(4)]
    rollouts = await store.enqueue_many_rollouts([EnqueueRolloutRequest(input=i) for i in range(100)])
    ended = await asyncio.wait_for(store.wait_for_rollouts(rollout_ids=[item.rollout_id for item in rollouts]), 30)
    await store.enqueue_many_rollouts([EnqueueRolloutRequest(input=None) for _ in threads])
    done = await asyncio.wait_for(asyncio.gather(*threads), 30)
    assert [item.input for item in ended] == list(range(100))
    assert sorted(chain.from_iterable(done)) == list(range(100))
    assert (await store.statistics())["total_spans"] == 300


async def test_closing_ends_the_waits_of_every_thread() -> None:
    store = InMemoryLightningStore()
    started = await store.start_rollout("a", config=RolloutConfig(timeout_seconds=1000))
    waiting = threading.Barrier(3)

    async def wait_for_work() -> None:
        waiting.wait(timeout=30)
        await store.dequeue_rollout(wait_seconds=None)

    async def wait_for_results() -> None:
        waiting.wait(timeout=30)
        await store.wait_for_rollouts(rollout_ids=[started.rollout_id])

    threads = [
        asyncio.create_task(asyncio.to_thread(asyncio.run, wait())) for wait in (wait_for_work, wait_for_results)
    ]
    await asyncio.to_thread(waiting.wait, timeout=30)
    await store.aclose()
    outcomes = await asyncio.wait_for(asyncio.gather(*threads, return_exceptions=True), 30)
    assert [type(outcome) for outcome in outcomes] == [StoreClosed, StoreClosed]


async def test_heartbeats_do_not_make_the_deadlines_grow() -> None:
    backend = MemoryBackend()
    config = RolloutConfig(timeout_seconds=1e9, unresponsive_seconds=10)
    for number in range(10):
        rollout = Rollout(rollout_id=f"ro-{number}", input=None, start_time=0.0, config=config)
        record = RolloutRecord("run-1", rollout)
        record = lifecycle.begin_attempt(record, 0.0, attempt_id=f"at-{number}", worker_id=None)
        await backend.insert([record])
    for beat in range(100_000):
        present = await backend.get("run-1", f"ro-{beat % 10}")
        assert present is not None
        now = beat / 1000
        assert await backend.replace(present, lifecycle.heartbeat(present, now, f"at-{beat % 10}"))
        if beat % 100 == 0:
            assert await backend.due("run-1", now) == []
    assert len(backend._runs["run-1"].deadlines) == 10
    assert len(await backend.due("run-1", 110.0)) == 10


async def test_retries_with_one_deadline_are_queued_in_the_order_of_their_creation() -> None:
    clock = FakeClock()
    store = InMemoryLightningStore(clock=clock)
    config = RolloutConfig(timeout_seconds=5, max_attempts=2, retry_condition=["timeout"])
    await store.enqueue_many_rollouts([EnqueueRolloutRequest(input=i, config=config) for i in range(20)])
    await store.dequeue_many_rollouts(limit=20)
    await clock.advance(5)
    assert [item.input for item in await store.dequeue_many_rollouts(limit=20)] == list(range(20))
