import asyncio
import gc
import threading
from typing import TYPE_CHECKING, Any

import pytest

from lightning_core.agent import rollout
from lightning_core.algorithm import algo, run_batch
from lightning_core.emitter import emit_message
from lightning_core.runner import LitAgentRunner, calls
from lightning_core.store import InMemoryLightningStore, LightningStore
from lightning_core.tracer import OtelTracer
from lightning_core.trainer import Trainer
from lightning_core.types import RolloutConfig, Worker

if TYPE_CHECKING:
    from tests.runner.conftest import MakeAgent, RunAgent

pytestmark = pytest.mark.usefixtures("nothing_left_running")

SHORT = RolloutConfig(timeout_seconds=0.03)
TIMED_OUT = {"type": "AgentTimeout", "message": "the agent ran longer than 0.03 s"}


def counts_of(worker: Worker | None) -> tuple[int, int]:
    """How many agents were abandoned, and how many of their spans were lost, as the last heartbeat says."""
    stats = (worker and worker.heartbeat_stats) or {}
    return stats["abandoned_agents"], stats["dropped_spans"]


async def test_async_agent_is_cancelled_at_its_timeout_and_cleans_up(run_agent: "RunAgent") -> None:
    @rollout
    async def agent(task: Any) -> float:
        try:
            await asyncio.Event().wait()
        finally:
            emit_message("cleaned up")
        return 1.0

    ran = await run_agent(agent, config=SHORT)

    assert (ran.rollout.status, ran.attempt.status) == ("failed", "timeout")
    assert ran.failure == TIMED_OUT
    assert [span.attributes.get("agentlightning.message.body") for span in ran.spans] == ["cleaned up"]


@pytest.mark.parametrize("last_word", ["a result", "an error"])
async def test_what_an_agent_says_after_its_timeout_counts_for_nothing(
    run_agent: "RunAgent", caplog: pytest.LogCaptureFixture, last_word: str
) -> None:
    @rollout
    async def agent(task: Any) -> float:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if last_word == "an error":
                raise ValueError("late") from None
        return 1.0

    ran = await run_agent(agent, config=SHORT)

    assert (ran.attempt.status, ran.failure, ran.spans) == ("timeout", TIMED_OUT, [])
    assert "abandoned" not in caplog.text


async def test_agent_that_ends_in_time_is_not_touched(make_agent: "MakeAgent", run_agent: "RunAgent") -> None:
    ran = await run_agent(make_agent(lambda: 1.0), config=RolloutConfig(timeout_seconds=60))

    assert (ran.rollout.status, ran.reward) == ("succeeded", 1.0)


async def test_sync_agent_is_abandoned_at_its_timeout_and_its_later_emissions_are_dropped(
    store: InMemoryLightningStore, run_agent: "RunAgent", caplog: pytest.LogCaptureFixture
) -> None:
    release, finished = threading.Event(), threading.Event()

    @rollout
    def agent(task: Any) -> float:
        emit_message("in time")
        release.wait(5)
        emit_message("too late")
        emit_message("much too late")
        finished.set()
        return 1.0

    ran = await run_agent(agent, config=SHORT)
    release.set()
    assert await asyncio.to_thread(finished.wait, 5)

    assert (ran.rollout.status, ran.attempt.status, ran.failure) == ("failed", "timeout", TIMED_OUT)
    spans = await store.query_spans(ran.rollout.rollout_id)
    assert [span.attributes["agentlightning.message.body"] for span in spans] == ["in time"]
    assert "lightning.agent_abandoned" in caplog.text
    assert "lightning.late_span_dropped" in caplog.text
    worker = await store.get_worker_by_id("worker-0")
    assert counts_of(worker) == (1, 0)


async def test_abandoned_agents_and_what_they_lost_are_in_heartbeats_and_in_the_result() -> None:
    release, finished = threading.Event(), threading.Event()

    @rollout
    def agent(task: str) -> float:
        if task == "slow":
            release.wait(5)
            emit_message("too late")
            finished.set()
        return 1.0

    @algo
    async def measure(store: LightningStore) -> None:
        batch = await run_batch(store, ["slow", "quick"], mode="train", config=SHORT)
        assert [outcome.reward for outcome in batch.outcomes] == [None, 1.0]
        assert batch.outcomes[0].failure == "AgentTimeout: the agent ran longer than 0.03 s"
        release.set()
        assert await asyncio.to_thread(finished.wait, 5)

    result = await Trainer(algorithm=measure).fit_async(agent)

    assert (result.abandoned_agents, result.dropped_spans) == (1, 1)
    assert [failure.cause for failure in result.failures] == ["AgentTimeout: the agent ran longer than 0.03 s"]


async def test_async_agent_that_refuses_to_be_cancelled_is_abandoned(
    store: InMemoryLightningStore,
    run_agent: "RunAgent",
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(calls, "CANCEL_GRACE_SECONDS", 0.01)
    release, finished = asyncio.Event(), asyncio.Event()

    @rollout
    async def agent(task: Any) -> None:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                emit_message("no")
        emit_message("too late")
        finished.set()
        raise ValueError("that nobody waits for")

    ran = await run_agent(agent, config=SHORT)
    assert (ran.rollout.status, ran.attempt.status, ran.failure) == ("failed", "timeout", TIMED_OUT)
    release.set()
    await finished.wait()
    await asyncio.sleep(0)
    gc.collect()

    assert "never retrieved" not in caplog.text
    spans = await store.query_spans(ran.rollout.rollout_id)
    assert [span.attributes["agentlightning.message.body"] for span in spans] == ["no"]
    worker = await store.get_worker_by_id("worker-0")
    assert counts_of(worker) == (1, 0)


async def test_coroutine_behind_a_plain_function_has_the_same_time(run_agent: "RunAgent") -> None:
    cancelled = []

    async def forever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.append(True)

    ran = await run_agent(rollout(lambda task: forever()), config=SHORT)

    assert (ran.attempt.status, ran.failure) == ("timeout", TIMED_OUT)
    assert cancelled


async def test_runner_that_is_cancelled_tells_of_the_thread_that_it_leaves_behind(
    store: InMemoryLightningStore,
) -> None:
    started, release, finished = asyncio.Event(), threading.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    @rollout
    def agent(task: Any) -> None:
        loop.call_soon_threadsafe(started.set)
        release.wait(5)
        finished.set()

    await store.enqueue_rollout("task")
    runner = LitAgentRunner(OtelTracer())
    with runner.run_context(agent=agent, store=store):
        running = asyncio.create_task(runner.iter())
        await started.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert not finished.is_set()
    release.set()
    assert await asyncio.to_thread(finished.wait, 5)

    worker = await store.get_worker_by_id("worker-0")
    assert counts_of(worker) == (1, 0)


async def test_abandoned_thread_may_end_after_its_event_loop() -> None:
    """It reports to a loop that is closed."""
    release, threads = threading.Event(), list[threading.Thread]()

    @rollout
    def agent(task: Any) -> None:
        threads.append(threading.current_thread())
        release.wait(5)

    async def run() -> None:
        store = InMemoryLightningStore()
        await store.enqueue_rollout("task", config=SHORT)
        runner = LitAgentRunner(OtelTracer(), max_rollouts=1)
        with runner.run_context(agent=agent, store=store):
            await runner.iter()

    await asyncio.to_thread(asyncio.run, run())
    release.set()
    await asyncio.to_thread(threads[0].join, 5)

    assert not threads[0].is_alive()
