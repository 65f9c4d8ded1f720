import asyncio
import gc
import threading
import weakref
from typing import TYPE_CHECKING, Any

import pytest

from lightning_core.agent import rollout
from lightning_core.algorithm import algo, run_batch
from lightning_core.emitter import emit_message
from lightning_core.runner import LitAgentRunner, calls
from lightning_core.store import InMemoryLightningStore, LightningStore
from lightning_core.tracer import OtelTracer, Trace, current_trace
from lightning_core.trainer import Trainer
from lightning_core.types import RolloutConfig, Worker

if TYPE_CHECKING:
    from tests.runner.conftest import LoopClock, RunAgent

pytestmark = pytest.mark.usefixtures("nothing_left_running")

LIMIT_SECONDS = 60.0
LIMITED = RolloutConfig(timeout_seconds=LIMIT_SECONDS)
TIMED_OUT = {"type": "AgentTimeout", "message": "the agent ran longer than 60 s"}


def counts_of(worker: Worker | None) -> tuple[int, int]:
    """How many agents were abandoned, and how many of their spans were lost, as the last heartbeat says."""
    stats = (worker and worker.heartbeat_stats) or {}
    return stats["abandoned_agents"], stats["dropped_spans"]


async def test_async_agent_is_cancelled_at_its_timeout_and_cleans_up(
    run_agent: "RunAgent", loop_clock: "LoopClock"
) -> None:
    @rollout
    async def agent(task: Any) -> float:
        loop_clock.advance(LIMIT_SECONDS)
        try:
            await asyncio.Event().wait()
        finally:
            emit_message("cleaned up")
        return 1.0

    ran = await run_agent(agent, config=LIMITED)

    assert (ran.rollout.status, ran.attempt.status) == ("failed", "timeout")
    assert ran.failure == TIMED_OUT
    assert [span.attributes.get("agentlightning.message.body") for span in ran.spans] == ["cleaned up"]


@pytest.mark.parametrize("last_word", ["a result", "an error"])
async def test_what_an_agent_says_after_its_timeout_counts_for_nothing(
    run_agent: "RunAgent", loop_clock: "LoopClock", caplog: pytest.LogCaptureFixture, last_word: str
) -> None:
    @rollout
    async def agent(task: Any) -> float:
        loop_clock.advance(LIMIT_SECONDS)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if last_word == "an error":
                raise ValueError("late") from None
        return 1.0

    ran = await run_agent(agent, config=LIMITED)

    assert (ran.attempt.status, ran.failure, ran.spans) == ("timeout", TIMED_OUT, [])
    assert "abandoned" not in caplog.text


async def test_agent_that_cleans_up_while_the_run_ends_is_not_abandoned(
    store: InMemoryLightningStore, loop_clock: "LoopClock", caplog: pytest.LogCaptureFixture
) -> None:
    """As the last rollout's does, when it times out."""
    cleaning, finished = asyncio.Event(), asyncio.Event()

    @rollout
    async def agent(task: Any) -> None:
        loop_clock.advance(LIMIT_SECONDS)
        try:
            await asyncio.Event().wait()
        finally:
            cleaning.set()
            await finished.wait()

    await store.enqueue_rollout("task", config=LIMITED)
    runner = LitAgentRunner(OtelTracer())
    with runner.run_context(agent=agent, store=store):
        running = asyncio.create_task(runner.iter())
        await cleaning.wait()
        running.cancel()
        asyncio.get_running_loop().call_soon(finished.set)
        with pytest.raises(asyncio.CancelledError):
            await running

    assert "abandoned" not in caplog.text
    assert counts_of(await store.get_worker_by_id("worker-0")) == (0, 0)


async def test_sync_agent_is_abandoned_at_its_timeout_and_its_later_emissions_are_dropped(
    store: InMemoryLightningStore, run_agent: "RunAgent", loop_clock: "LoopClock", caplog: pytest.LogCaptureFixture
) -> None:
    release, finished = threading.Event(), threading.Event()

    @rollout
    def agent(task: Any) -> float:
        emit_message("in time")
        loop_clock.advance(LIMIT_SECONDS)
        release.wait(20)
        emit_message("too late")
        emit_message("much too late")
        finished.set()
        return 1.0

    ran = await run_agent(agent, config=LIMITED)
    release.set()
    assert await asyncio.to_thread(finished.wait, 20)

    assert (ran.rollout.status, ran.attempt.status, ran.failure) == ("failed", "timeout", TIMED_OUT)
    spans = await store.query_spans(ran.rollout.rollout_id)
    assert [span.attributes["agentlightning.message.body"] for span in spans] == ["in time"]
    assert "lightning.agent_abandoned" in caplog.text
    assert "lightning.late_span_dropped" in caplog.text
    worker = await store.get_worker_by_id("worker-0")
    assert counts_of(worker) == (1, 0)


async def test_abandoned_agents_and_what_they_lost_are_in_heartbeats_and_in_the_result(
    loop_clock: "LoopClock",
) -> None:
    release, finished = threading.Event(), threading.Event()

    @rollout
    def agent(task: str) -> float:
        if task == "slow":
            loop_clock.advance(LIMIT_SECONDS)
            release.wait(20)
            emit_message("too late")
            finished.set()
        return 1.0

    @algo
    async def measure(store: LightningStore) -> None:
        batch = await run_batch(store, ["slow", "quick"], mode="train", config=LIMITED)
        assert [outcome.reward for outcome in batch.outcomes] == [None, 1.0]
        assert batch.outcomes[0].failure == "AgentTimeout: the agent ran longer than 60 s"
        release.set()
        assert await asyncio.to_thread(finished.wait, 20)

    result = await Trainer(algorithm=measure).fit_async(agent)

    assert (result.abandoned_agents, result.dropped_spans) == (1, 1)
    assert [failure.cause for failure in result.failures] == ["AgentTimeout: the agent ran longer than 60 s"]


async def test_async_agent_that_refuses_to_be_cancelled_is_abandoned(
    store: InMemoryLightningStore,
    run_agent: "RunAgent",
    loop_clock: "LoopClock",
    caplog: pytest.LogCaptureFixture,
) -> None:
    release, finished = asyncio.Event(), asyncio.Event()

    @rollout
    async def agent(task: Any) -> None:
        loop_clock.advance(LIMIT_SECONDS)
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                emit_message("no")
                loop_clock.advance(calls.CANCEL_GRACE_SECONDS)
        emit_message("too late")
        finished.set()
        raise ValueError("that nobody waits for")

    ran = await run_agent(agent, config=LIMITED)
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


async def test_runner_that_is_cancelled_tells_of_the_thread_that_it_leaves_behind(
    store: InMemoryLightningStore,
) -> None:
    started, release, finished = asyncio.Event(), threading.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    @rollout
    def agent(task: Any) -> None:
        loop.call_soon_threadsafe(started.set)
        release.wait(20)
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
    assert await asyncio.to_thread(finished.wait, 20)

    worker = await store.get_worker_by_id("worker-0")
    assert counts_of(worker) == (1, 0)


async def test_abandoned_thread_may_end_after_its_event_loop(loop_clock: "LoopClock") -> None:
    """It reports to a loop that is closed."""
    release, threads, clocks = threading.Event(), list[threading.Thread](), list["LoopClock"]()

    @rollout
    def agent(task: Any) -> None:
        threads.append(threading.current_thread())
        clocks[0].advance(LIMIT_SECONDS)
        release.wait(20)

    async def run() -> None:
        clocks.append(type(loop_clock)())
        store = InMemoryLightningStore()
        await store.enqueue_rollout("task", config=LIMITED)
        runner = LitAgentRunner(OtelTracer(), max_rollouts=1)
        with runner.run_context(agent=agent, store=store):
            await runner.iter()

    await asyncio.to_thread(asyncio.run, run())
    release.set()
    await asyncio.to_thread(threads[0].join, 20)

    assert not threads[0].is_alive()


async def test_trace_of_an_abandoned_agent_is_not_kept_for_the_sake_of_counting(
    store: InMemoryLightningStore, loop_clock: "LoopClock"
) -> None:
    """A runner that lives long abandons many."""
    release, threads = threading.Event(), list[threading.Thread]()
    traces: list[weakref.ref[Trace]] = []

    @rollout
    def agent(task: Any) -> None:
        trace = current_trace()
        assert trace is not None
        traces.append(weakref.ref(trace))
        threads.append(threading.current_thread())
        loop_clock.advance(LIMIT_SECONDS)
        release.wait(20)
        emit_message("too late")

    runner = LitAgentRunner(OtelTracer(), max_rollouts=1)
    with runner.run_context(agent=agent, store=store):
        for _ in range(2):
            await store.enqueue_rollout("task", config=LIMITED)
            await asyncio.create_task(runner.iter())  # a task knows the last trace that it was in
        release.set()
        while threads:
            await asyncio.to_thread(lambda: threads.pop().join(20))  # an executor holds on to its argument
        gc.collect()
        assert [trace() for trace in traces] == [None, None]

        release.clear()
        await store.enqueue_rollout("task", config=LIMITED)
        await runner.iter()
        # Counted since `init_worker`, the third one too.
        assert counts_of(await store.get_worker_by_id("worker-0")) == (3, 2)
    release.set()
    await asyncio.to_thread(threads.pop().join, 20)
