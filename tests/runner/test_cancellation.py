import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from lightning_core.agent import rollout
from lightning_core.emitter import emit_message
from lightning_core.runner import LitAgentRunner, heartbeats
from lightning_core.store import InMemoryLightningStore
from lightning_core.testing.store.base import present, turn
from lightning_core.tracer import OtelTracer
from lightning_core.types import Attempt, Rollout, RolloutConfig

if TYPE_CHECKING:
    from tests.runner.conftest import RunAgent

pytestmark = pytest.mark.usefixtures("nothing_left_running")


@rollout
async def endless(task: Any, rollout: Rollout) -> None:
    emit_message("begun")
    await asyncio.Event().wait()


class Started:
    """Told when an agent is about to run."""

    def __init__(self) -> None:
        self.rollout_ids: asyncio.Queue[str] = asyncio.Queue()
        self.ended: list[tuple[str, str]] = []

    def lightning_trace_start(self, rollout: Rollout) -> None:
        self.rollout_ids.put_nowait(rollout.rollout_id)

    def lightning_rollout_end(self, rollout: Rollout, attempt: Attempt) -> None:
        self.ended.append((rollout.status, attempt.status))


async def test_cancelled_rollout_ends_with_its_reason_and_keeps_its_spans(store: InMemoryLightningStore) -> None:
    started = Started()
    queued = await store.enqueue_rollout("task")
    runner = LitAgentRunner(OtelTracer(), max_rollouts=1)
    with runner.run_context(agent=endless, store=store, hooks=started):
        running = asyncio.create_task(runner.iter())
        await started.rollout_ids.get()
        await store.update_rollout(queued.rollout_id, status="cancelled")
        await running

    attempt = present(await store.get_latest_attempt(queued.rollout_id))
    assert attempt.status == "failed"
    assert attempt.metadata == {
        "failure": {"type": "AttemptStopped", "message": f"rollout {queued.rollout_id} was cancelled"}
    }
    assert [span.name for span in await store.query_spans(queued.rollout_id)] == ["agentlightning.message"]
    assert started.ended == [("cancelled", "failed")]
    worker = present(await store.get_worker_by_id("worker-0"))
    assert (worker.status, worker.current_attempt_id) == ("idle", None)


async def test_agent_of_a_rollout_that_was_cancelled_before_it_began_is_not_called(
    store: InMemoryLightningStore, monkeypatch: pytest.MonkeyPatch, run_agent: "RunAgent"
) -> None:
    monkeypatch.setattr(heartbeats, "LISTEN_AFTER_SECONDS", 0)
    called = []

    @rollout
    def agent(task: Any) -> None:
        called.append(task)

    class Canceller:
        async def lightning_rollout_start(self, rollout: Rollout) -> None:
            await store.update_rollout(rollout.rollout_id, status="cancelled")
            await turn(20)

    await run_agent(agent, "task", on=store, hooks=Canceller())

    assert called == []


async def test_deleted_rollout_stops_its_agent_and_not_its_runner(
    store: InMemoryLightningStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(heartbeats, "LISTEN_AFTER_SECONDS", 0)
    started = Started()
    queued = await store.enqueue_rollout("task")
    runner = LitAgentRunner(OtelTracer(), max_rollouts=2)
    with runner.run_context(agent=endless, store=store, hooks=started):
        running = asyncio.create_task(runner.iter())
        await started.rollout_ids.get()
        await turn(20)
        await store.delete_run()
        following = await store.enqueue_rollout("task")
        assert await started.rollout_ids.get() == following.rollout_id
        await store.update_rollout(following.rollout_id, status="cancelled")
        await running

    assert await store.get_rollout_by_id(queued.rollout_id) is None
    assert "lightning.late_result" in caplog.text


async def test_runner_whose_store_cannot_be_listened_to_works_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, run_agent: "RunAgent"
) -> None:
    monkeypatch.setattr(heartbeats, "LISTEN_AFTER_SECONDS", 0)

    class Mute(InMemoryLightningStore):
        async def wait_for_rollouts(self, **wanted: Any) -> Any:
            raise ConnectionError("the line is dead")

    @rollout
    async def agent(task: Any) -> float:
        await turn(20)
        return 1.0

    store = Mute()
    await run_agent(agent, "task", on=store)

    assert [each.status for each in await store.query_rollouts()] == ["succeeded"]
    assert "lightning.rollout_not_watched" in caplog.text


async def test_timeout_that_the_store_notices_first_is_a_timeout(
    monkeypatch: pytest.MonkeyPatch, run_agent: "RunAgent"
) -> None:
    monkeypatch.setattr(heartbeats, "LISTEN_AFTER_SECONDS", 0)
    store = InMemoryLightningStore()

    @rollout
    async def agent(task: Any, rollout: Rollout) -> None:
        await store.update_attempt(rollout.rollout_id, "latest", status="timeout")
        await asyncio.Event().wait()

    ran = await run_agent(agent, "task", config=RolloutConfig(timeout_seconds=60), on=store)

    attempt = ran.attempt
    assert attempt.status == "timeout"
    assert attempt.metadata == {"failure": {"type": "AgentTimeout", "message": "the agent ran longer than 60 s"}}


# A runner that is stopped


async def test_runner_that_is_stopped_does_not_wait_for_a_store_that_is_gone(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lightning_core.runner.outcome.LAST_WORDS_SECONDS", 0.01)

    class Gone(InMemoryLightningStore):
        async def report_fault(self, *args: Any, **kwargs: Any) -> Attempt:
            await asyncio.Event().wait()
            raise AssertionError

    store, started = Gone(), Started()
    await store.enqueue_rollout("task")
    runner = LitAgentRunner(OtelTracer())
    with runner.run_context(agent=endless, store=store, hooks=started):
        running = asyncio.create_task(runner.iter())
        await started.rollout_ids.get()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            async with asyncio.timeout(20):
                await running

    assert "lightning.rollout_not_given_back" in caplog.text


async def test_runner_that_is_stopped_after_its_rollout_has_ended_changes_nothing(
    store: InMemoryLightningStore,
) -> None:
    telling = asyncio.Event()

    class Endless:
        async def lightning_rollout_end(self) -> None:
            telling.set()
            await asyncio.Event().wait()

    @rollout
    async def agent(task: Any) -> float:
        return 1.0

    queued = await store.enqueue_rollout("task")
    runner = LitAgentRunner(OtelTracer())
    with runner.run_context(agent=agent, store=store, hooks=Endless()):
        running = asyncio.create_task(runner.iter())
        await telling.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    (ended,) = await store.wait_for_rollouts(rollout_ids=[queued.rollout_id], timeout=0)
    assert ended.status == "succeeded"


async def test_rollout_that_was_claimed_while_its_runner_was_stopped_is_given_back() -> None:
    class Slow(InMemoryLightningStore):
        """Its claims have happened, and their answers are on the way."""

        claimed = asyncio.Event()

        async def dequeue_rollout(self, *args: Any, **kwargs: Any) -> Any:
            rollout = await super().dequeue_rollout(*args, **kwargs)
            self.claimed.set()
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                return rollout
            return None

    store = Slow()
    await store.enqueue_rollout("task")
    runner = LitAgentRunner(OtelTracer())
    with runner.run_context(agent=endless, store=store):
        running = asyncio.create_task(runner.iter(event=asyncio.Event()))
        await store.claimed.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    (again,) = await store.query_rollouts()
    assert again.status == "requeuing"
