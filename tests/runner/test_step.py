import asyncio
import threading
from typing import Any

import pytest

from lightning_core.agent import LitAgent, rollout
from lightning_core.runner import LitAgentRunner
from lightning_core.store import InMemoryLightningStore
from lightning_core.tracer import OtelTracer
from lightning_core.types import NamedResources, PromptTemplate, Rollout

pytestmark = pytest.mark.usefixtures("nothing_left_running")


async def test_resources_of_a_step_become_the_latest(store: InMemoryLightningStore) -> None:
    seen = []

    @rollout
    def agent(task: Any, prompt_template: PromptTemplate) -> None:
        seen.append(prompt_template.template)

    runner = LitAgentRunner(OtelTracer())
    with runner.run_context(agent=agent, store=store):
        first = await runner.step("a", resources={"prompt": PromptTemplate(template="new")})
        second = await runner.step("b")

    assert seen == ["new", "new"]
    latest = await store.get_latest_resources()
    assert latest is not None
    assert first.resources_id == second.resources_id == latest.resources_id


class Endless(LitAgent[Any]):
    """Says when it has begun."""

    def __init__(self) -> None:
        super().__init__()
        self.started = asyncio.Event()

    async def rollout_async(self, task: Any, resources: NamedResources, rollout: Rollout) -> None:
        self.started.set()
        await asyncio.Event().wait()


@pytest.fixture
def endless() -> Endless:
    return Endless()


@pytest.mark.parametrize("event_kind", [asyncio.Event, threading.Event])
async def test_event_stops_the_agent_of_a_step(
    store: InMemoryLightningStore, endless: Endless, event_kind: Any
) -> None:
    event = event_kind()
    runner = LitAgentRunner(OtelTracer())
    with runner.run_context(agent=endless, store=store):
        running = asyncio.create_task(runner.step("task", event=event))
        await endless.started.wait()
        event.set()
        ended = await running

    assert ended.status == "cancelled"


async def test_step_that_is_cancelled_leaves_no_work_for_others(
    store: InMemoryLightningStore, endless: Endless
) -> None:
    runner = LitAgentRunner(OtelTracer())
    with runner.run_context(agent=endless, store=store):
        running = asyncio.create_task(runner.step("task"))
        await endless.started.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

        (ended,) = await store.query_rollouts()
        assert ended.status == "cancelled"
        assert await store.dequeue_rollout() is None


async def test_step_without_heartbeats_of_its_own_shares_those_of_iter(
    store: InMemoryLightningStore, endless: Endless
) -> None:
    """A worker that has sent heartbeats once has to go on as long as it works."""
    runner = LitAgentRunner(OtelTracer())
    with runner.run_context(agent=endless, store=store):
        stop = asyncio.Event()
        iterating = asyncio.create_task(runner.iter(event=stop))
        for _ in range(20):
            await asyncio.sleep(0)
        assert await store.get_worker_by_id("worker-0") is not None
        stepping = asyncio.create_task(runner.step("task"))
        await endless.started.wait()
        stop.set()
        await iterating
        assert "heartbeats" in [thread.name for thread in threading.enumerate()]
        stepping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stepping
