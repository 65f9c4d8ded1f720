import asyncio
import contextlib
import os
import threading
import time
from collections.abc import Mapping
from typing import Any

import pytest
import uvloop

from lightning_core.agent import rollout
from lightning_core.runner import LitAgentRunner, heartbeats, heartbeats as machine
from lightning_core.runner.heartbeats import Assignment
from lightning_core.store import InMemoryLightningStore, LightningStoreCapabilities
from lightning_core.testing import FakeClock
from lightning_core.testing.store.base import present
from lightning_core.tracer import OtelTracer
from lightning_core.types import AttemptedRollout, Rollout, RolloutConfig, Worker

pytestmark = pytest.mark.usefixtures("nothing_left_running")

IN_THREAD_OR_LOOP = pytest.mark.usefixtures("in_thread_or_loop")
LEASE_SECONDS = 30


@pytest.fixture(params=[True, False], ids=["thread", "loop"])
def in_thread_or_loop(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Heartbeats are sent from a thread where the store can be used from one."""
    capabilities = {"async_safe": True, "thread_safe": request.param}
    monkeypatch.setattr(InMemoryLightningStore, "capabilities", capabilities)


@rollout
async def succeeds(task: Any) -> float:
    return 1.0


class HeardStore(InMemoryLightningStore):
    """Lets an agent wait for heartbeats, in whichever thread they are sent."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.heard = threading.Semaphore(0)
        self.threads: list[threading.Thread] = []

    async def update_worker(self, worker_id: str, *args: Any, **kwargs: Any) -> Worker:
        worker = await super().update_worker(worker_id, *args, **kwargs)
        self.threads.append(threading.current_thread())
        self.heard.release()
        return worker

    async def next_heartbeats(self, number: int) -> None:
        """Wait for heartbeats that are sent from now on."""
        while self.heard.acquire(blocking=False):
            pass
        for _ in range(number):
            assert await asyncio.to_thread(self.heard.acquire, timeout=20)


class LoopStore(HeardStore):
    """Belongs to one event loop."""

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        return {**super().capabilities, "thread_safe": False}


def quick_runner(**options: Any) -> LitAgentRunner:
    return LitAgentRunner(OtelTracer(), max_rollouts=1, heartbeat_interval=0.002, **options)


async def run_one(store: InMemoryLightningStore, runner: LitAgentRunner, agent: Any) -> Rollout:
    queued = await store.enqueue_rollout("task")
    with runner.run_context(agent=agent, store=store, worker_id=7):
        await runner.iter()
    return present(await store.get_rollout_by_id(queued.rollout_id))


@IN_THREAD_OR_LOOP
async def test_slow_agent_keeps_its_lease() -> None:
    clock = FakeClock()
    store = HeardStore(clock=clock)

    @rollout
    async def agent(task: Any) -> float:
        for _ in range(5):
            await store.next_heartbeats(2)
            await clock.advance(LEASE_SECONDS - 5)
        return 1.0

    ended = await run_one(store, quick_runner(), agent)

    assert ended.status == "succeeded"
    assert len(await store.query_attempts(ended.rollout_id)) == 1


@IN_THREAD_OR_LOOP
@pytest.mark.parametrize(
    ("lease_seconds", "unresponsive_seconds"),
    [(0.03, None), (LEASE_SECONDS, 0.03)],
    ids=["the lease of the store", "what the rollout allows"],
)
async def test_heartbeats_come_often_enough_for(lease_seconds: float, unresponsive_seconds: float | None) -> None:
    """The pause that has begun before the claim is cut short."""
    store = HeardStore(clock=FakeClock(), lease_seconds=lease_seconds)

    @rollout
    async def agent(task: Any) -> float:
        await store.next_heartbeats(3)
        return 1.0

    await store.enqueue_rollout("task", config=RolloutConfig(unresponsive_seconds=unresponsive_seconds))
    runner = LitAgentRunner(OtelTracer(), max_rollouts=1, heartbeat_interval=3600)
    with runner.run_context(agent=agent, store=store):
        await runner.iter()

    assert [each.status for each in await store.query_rollouts()] == ["succeeded"]


async def test_limit_that_is_changed_while_the_agent_runs_is_seen_at_the_next_heartbeat() -> None:
    store = InMemoryLightningStore(clock=FakeClock())
    assignment = Assignment(await store.start_rollout("task"), store)
    before = assignment.unresponsive_seconds
    await store.update_rollout(assignment.rollout_id, config=RolloutConfig(unresponsive_seconds=3))
    await assignment.look()

    assert (before, assignment.unresponsive_seconds) == (None, 3)


async def test_agent_that_blocks_the_event_loop_keeps_its_lease() -> None:
    store = HeardStore(lease_seconds=1.0)

    @rollout
    async def agent(task: Any) -> float:
        time.sleep(1.5)  # noqa: ASYNC251  # as somebody does who calls a model without await
        return 1.0

    ended = await run_one(store, quick_runner(), agent)

    assert ended.status == "succeeded"
    assert len(await store.query_attempts(ended.rollout_id)) == 1


def run_two(agent: Any, new_loop: Any = asyncio.new_event_loop) -> None:
    """Run an agent on two tasks at the same time, with heartbeats that are far apart."""

    async def run() -> None:
        store = InMemoryLightningStore()
        for task in range(2):
            await store.enqueue_rollout(task)
        with contextlib.ExitStack() as stack:
            runners = [LitAgentRunner(OtelTracer(), max_rollouts=1) for _ in range(2)]
            for number, runner in enumerate(runners):
                stack.enter_context(runner.run_context(agent=agent, store=store, worker_id=number))
            await asyncio.gather(*(runner.iter() for runner in runners))

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(run())


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_an_agent_that_blocks_the_event_loop_of_other_runners_is_told_once_a_run_with_its_line(
    new_loop: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(heartbeats, "BLOCKED_SECONDS", 0.1)

    def block() -> None:
        time.sleep(0.4)

    @rollout
    async def agent(task: int) -> float:
        await asyncio.sleep(0)

        async def part() -> None:
            block()

        await asyncio.gather(part())
        return 1.0

    for _ in range(2):
        caplog.clear()
        run_two(agent, new_loop)
        assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
            "lightning.event_loop_blocked at='tests/runner/test_heartbeats.py"
        ]
        assert " in block': this has kept 2 runners waiting for more than 0.1 s" in caplog.text


def test_agents_that_keep_no_other_from_going_on_are_not_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(heartbeats, "BLOCKED_SECONDS", 0.1)

    @rollout
    async def waits(task: int) -> float:
        await asyncio.gather(asyncio.sleep(0.3), asyncio.to_thread(time.sleep, 0.3))
        return 1.0

    @rollout
    def blocks_its_own_thread(task: int) -> float:
        time.sleep(0.3)
        return 1.0

    run_two(waits)
    run_two(blocks_its_own_thread)
    assert caplog.text == ""


@IN_THREAD_OR_LOOP
async def test_claim_is_a_lease_from_the_first_one_on() -> None:
    clock = FakeClock()
    store = HeardStore(clock=clock)
    heard = []

    @rollout
    async def agent(task: Any) -> None:
        worker = present(await store.get_worker_by_id("worker-7"))
        heard.append((worker.last_heartbeat_time, worker.last_dequeue_time))

    await run_one(store, quick_runner(), agent)

    assert heard[0][0] <= heard[0][1]


async def test_store_that_belongs_to_a_loop_gets_its_heartbeats_there() -> None:
    store = LoopStore()

    @rollout
    async def agent(task: Any) -> None:
        await store.next_heartbeats(3)

    await run_one(store, quick_runner(), agent)

    assert set(store.threads) == {threading.main_thread()}


@IN_THREAD_OR_LOOP
async def test_heartbeats_say_how_the_machine_and_the_agents_do() -> None:
    store = HeardStore()

    @rollout
    async def agent(task: Any) -> None:
        await store.next_heartbeats(2)

    await run_one(store, quick_runner(), agent)

    worker = present(await store.get_worker_by_id("worker-7"))
    assert worker.status == "idle"
    stats = present(worker.heartbeat_stats)
    assert (stats["abandoned_agents"], stats["dropped_spans"], stats["process_id"]) == (0, 0, os.getpid())
    assert 0 < stats["mem_used_gb"] < stats["mem_total_gb"]
    assert stats["process_mem_mb"] > 1
    assert {"host", "cpu_usage_pct", "mem_pct", "process_threads"} <= stats.keys()


def test_machine_that_cannot_be_looked_at_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise PermissionError("no /proc here")

    monkeypatch.setattr(machine, "_newest", None)
    monkeypatch.setattr("psutil.virtual_memory", refuse)

    assert machine.system_snapshot()["snapshot_error"] == "PermissionError: no /proc here"
    monkeypatch.setattr(machine, "_newest", None)


async def test_steps_that_overlap_all_keep_their_leases() -> None:
    """The worker's record names only the newest of them."""
    clock = FakeClock()
    store = HeardStore(clock=clock)
    both, done = asyncio.Barrier(2), asyncio.Event()

    @rollout
    async def agent(task: str, rollout: AttemptedRollout) -> float:
        await both.wait()
        if task == "second":
            for _ in range(4):
                await store.next_heartbeats(3)
                await clock.advance(LEASE_SECONDS - 5)
            done.set()
        await done.wait()
        return 1.0

    runner = LitAgentRunner(OtelTracer(), heartbeat_interval=0.002)
    with runner.run_context(agent=agent, store=store):
        ended = await asyncio.gather(runner.step("first"), runner.step("second"))

    assert [each.status for each in ended] == ["succeeded", "succeeded"]
    assert [len(await store.query_attempts(each.rollout_id)) for each in ended] == [1, 1]


@IN_THREAD_OR_LOOP
async def test_runner_that_cannot_send_heartbeats_works_on(caplog: pytest.LogCaptureFixture) -> None:
    class Deaf(InMemoryLightningStore):
        async def update_worker(self, *args: Any, **kwargs: Any) -> Worker:
            raise ConnectionError("the line is dead")

    store = Deaf()
    for number in range(3):
        await store.enqueue_rollout(number)
    runner = LitAgentRunner(OtelTracer(), max_rollouts=3)
    with runner.run_context(agent=succeeds, store=store):
        await runner.iter()

    assert [each.status for each in await store.query_rollouts()] == ["succeeded"] * 3
    assert "lightning.heartbeat_failed worker_id=worker-0" in caplog.text


@IN_THREAD_OR_LOOP
async def test_heartbeat_that_hangs_holds_nobody_up_for_long(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(heartbeats, "FIRST_SECONDS", 0.01)

    class Slow(InMemoryLightningStore):
        async def update_worker(
            self, worker_id: str, heartbeat_stats: Any = None, *, attempts: Any = (), request_id: str | None = None
        ) -> Worker:
            await asyncio.Event().wait()
            raise AssertionError

    store = Slow()
    queued = await store.enqueue_rollout("task")
    runner = LitAgentRunner(OtelTracer(), max_rollouts=1)
    with runner.run_context(agent=succeeds, store=store):
        async with asyncio.timeout(20):
            await runner.iter()

    (ended,) = await store.wait_for_rollouts(rollout_ids=[queued.rollout_id], timeout=0)
    assert ended.status == "succeeded"
    (late, *_) = [each for each in caplog.records if "lightning.heartbeat_failed" in each.getMessage()]
    assert late.getMessage().endswith("worker_id=worker-0: the store did not answer within 0.01 s; its work goes on")
    assert late.exc_info is None


@IN_THREAD_OR_LOOP
async def test_idle_heartbeat_that_hangs_does_not_hold_up_those_of_the_next_claim(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class HangsOnce(HeardStore):
        hangs = threading.Event()

        async def update_worker(self, *args: Any, **kwargs: Any) -> Worker:
            worker = await super().update_worker(*args, **kwargs)
            if len(self.threads) == 2:  # the first idle one
                self.hangs.set()
                await asyncio.Event().wait()
            return worker

    store = HangsOnce(clock=FakeClock(), lease_seconds=0.06)

    @rollout
    async def agent(task: Any) -> float:
        await store.next_heartbeats(1)
        return 1.0

    runner = LitAgentRunner(OtelTracer(), max_rollouts=1, heartbeat_interval=0.06)
    with runner.run_context(agent=agent, store=store):
        working = asyncio.create_task(runner.iter())
        assert await asyncio.to_thread(store.hangs.wait, 20)
        await store.enqueue_rollout("task")
        await working

    assert "the store did not answer within 0.02 s" in caplog.text


# What a heartbeat finds out


@IN_THREAD_OR_LOOP
async def test_attempt_whose_lease_was_lost_is_stopped(caplog: pytest.LogCaptureFixture) -> None:
    """Heartbeats did not get through for a while; then somebody else has the rollout."""
    clock = FakeClock()

    class Unreachable(HeardStore):
        reachable = True

        async def update_worker(
            self, worker_id: str, heartbeat_stats: Mapping[str, Any] | Any = None, **more: Any
        ) -> Worker:
            if not self.reachable:
                raise ConnectionError("the line is dead")
            return await super().update_worker(worker_id, heartbeat_stats, **more)

    store = Unreachable(clock=clock)
    stopped = []

    @rollout
    async def agent(task: Any, rollout: AttemptedRollout) -> float:
        await store.next_heartbeats(1)
        store.reachable = False
        await clock.advance(LEASE_SECONDS + 1)
        other = present(await store.dequeue_rollout("somebody else"))
        assert other.rollout_id == rollout.rollout_id
        store.reachable = True
        try:
            await asyncio.Event().wait()
        finally:
            stopped.append(True)
        return 0.0

    ended = await run_one(store, quick_runner(), agent)

    assert stopped == [True]
    assert ended.status == "preparing"  # of the other one
    first, _ = await store.query_attempts(ended.rollout_id)
    assert (first.status, first.metadata) == (
        "unresponsive",
        {"fault": "its worker gave no sign of life for 30 s"},
    )
    assert "lightning.late_result" in caplog.text


async def test_attempt_whose_rollout_was_queued_again_is_stopped() -> None:
    store = HeardStore()

    @rollout
    async def agent(task: Any, rollout: AttemptedRollout) -> float:
        if rollout.attempt.sequence_id == 1:
            await store.update_rollout(rollout.rollout_id, status="requeuing")
            await asyncio.Event().wait()
        return 1.0

    queued = await store.enqueue_rollout("task")
    runner = LitAgentRunner(OtelTracer(), max_rollouts=2, heartbeat_interval=0.002)
    with runner.run_context(agent=agent, store=store):
        await runner.iter()

    assert [each.status for each in await store.query_attempts(queued.rollout_id)] == ["failed", "succeeded"]
