"""A claim that the store has carried out, and whose answer a runner does not hear any more, is given back."""

import asyncio
from typing import Any

import pytest

from lightning_core.agent import rollout
from lightning_core.runner import LitAgentRunner
from lightning_core.store import InMemoryLightningStore
from lightning_core.testing.store.base import present
from lightning_core.tracer import OtelTracer
from lightning_core.types import AttemptedRollout, Rollout

pytestmark = pytest.mark.usefixtures("nothing_left_running")


class SlowAnswers(InMemoryLightningStore):
    """Claims at once, and never comes to answer, as a server whose connection is lost; but when it is asked again."""

    def __init__(self) -> None:
        super().__init__()
        self.claimed = asyncio.Event()
        self._asked: set[str | None] = set()

    async def dequeue_rollout(
        self, worker_id: str | None = None, *, wait_seconds: float | None = 0.0, request_id: str | None = None
    ) -> AttemptedRollout | None:
        answer = await super().dequeue_rollout(worker_id, wait_seconds=wait_seconds, request_id=request_id)
        if request_id not in self._asked:
            self._asked.add(request_id)
            self.claimed.set()
            await asyncio.Event().wait()
        return answer


@rollout
async def never(task: Any) -> None:
    raise AssertionError("nobody may run it")


async def found_after(store: InMemoryLightningStore, claiming: asyncio.Event, how: str) -> Rollout:
    """End a runner while it claims a rollout, and return what has become of that."""
    queued = await store.enqueue_rollout("task")
    runner, stop = LitAgentRunner[Any](OtelTracer()), asyncio.Event()
    with runner.run_context(agent=never, store=store):
        running = asyncio.create_task(runner.iter(event=stop))
        await claiming.wait()
        stop.set() if how == "told to stop" else running.cancel()
        await asyncio.wait((running,))
    assert running.cancelled() is (how == "cancelled")
    return present(await store.get_rollout_by_id(queued.rollout_id))


@pytest.mark.parametrize("how", ["cancelled", "told to stop"])
async def test_a_runner_that_ends_during_its_claim_leaves_nothing_claimed(how: str) -> None:
    store = SlowAnswers()
    found = await found_after(store, store.claimed, how)
    assert isinstance(found, AttemptedRollout)
    assert (found.status, found.attempt.metadata) == ("requeuing", {"fault": "its runner was stopped"})


class Unheard(InMemoryLightningStore):
    """Never hears of the first claim, as a server to which the connection is lost."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = asyncio.Event()

    async def dequeue_rollout(
        self, worker_id: str | None = None, *, wait_seconds: float | None = 0.0, request_id: str | None = None
    ) -> AttemptedRollout | None:
        if not self.asked.is_set():
            self.asked.set()
            await asyncio.Event().wait()
        return await super().dequeue_rollout(worker_id, wait_seconds=wait_seconds, request_id=request_id)


@pytest.mark.parametrize("how", ["cancelled", "told to stop"])
async def test_a_runner_that_ends_during_a_claim_that_nobody_has_heard_begins_nothing(how: str) -> None:
    store = Unheard()
    found = await found_after(store, store.asked, how)
    assert found.status == "queuing"
    assert list(await store.query_attempts(found.rollout_id)) == []
