"""Stop events under the names of agentlightning 0.3."""

import asyncio

import pytest

from lightning_core import InMemoryLightningStore, LitAgentRunner, MultiprocessingEvent, OtelTracer, ThreadingEvent
from lightning_core.agent import rollout
from lightning_core.execution import ExecutionEvent


@rollout
async def solve(task: float) -> float:
    return task


@pytest.mark.parametrize("make", [ThreadingEvent, MultiprocessingEvent])
async def test_event_stops_a_runner(make: type[ThreadingEvent] | type[MultiprocessingEvent]):
    event: ExecutionEvent = make()
    store = InMemoryLightningStore()
    queued = await store.enqueue_rollout(1.0)
    runner = LitAgentRunner[float](OtelTracer())
    with runner.run_context(agent=solve, store=store):
        working = asyncio.create_task(runner.iter(event=event))
        await store.wait_for_rollouts(rollout_ids=[queued.rollout_id], timeout=20)
        assert not event.is_set()
        event.set()
        await asyncio.wait_for(working, 20)
    assert event.wait(timeout=0.0)
    event.clear()
    assert not event.is_set()
