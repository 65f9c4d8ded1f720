"""The conformance suite of runners."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from lightning_core.agent import LitAgent, rollout
from lightning_core.emitter import emit_message, emit_reward, find_final_reward
from lightning_core.errors import Fault
from lightning_core.runner import Runner
from lightning_core.store import InMemoryLightningStore, LightningStore
from lightning_core.testing.store.base import PATIENCE_SECONDS, present, soon
from lightning_core.types import Attempt, AttemptedRollout, NamedResources, PromptTemplate, Rollout, RolloutConfig, Span


class RunnerSuite:
    """Proves that a runner keeps the promises of `Runner`, to the store as well as to the agent.

    Subclass it in a test file, and say how to make the runner:

        from lightning_core.testing import RunnerSuite
        from lightning_core.tracer import OtelTracer
        from my_package import MyRunner


        class TestMyRunner(RunnerSuite):
            def make_runner(self, *, max_rollouts=None):
                # New each time; some tests use several at once.
                return MyRunner(OtelTracer(), max_rollouts=max_rollouts)

    The runner has to run the agents of the suite in this process. Its store is the one in memory; override
    `make_store` for another one. A test that a runner cannot pass yet can be overridden by its name, with the reason.
    """

    pytestmark = pytest.mark.asyncio

    def make_runner(self, *, max_rollouts: int | None = None) -> Runner:
        """Return a new runner, which ends after so many rollouts; None for no limit."""
        raise NotImplementedError("override make_runner: return a new runner")

    async def make_store(self) -> LightningStore:
        """Return an empty store."""
        return InMemoryLightningStore()

    @asynccontextmanager
    async def running(
        self, agent: LitAgent[Any], store: LightningStore, *, n_runners: int = 1
    ) -> AsyncIterator["list[asyncio.Task[None]]"]:
        """Let runners without a limit run an agent during a block."""

        async def run(worker_id: int) -> None:
            runner = self.make_runner()
            with runner.run_context(agent=agent, store=store, worker_id=worker_id):
                await runner.iter()

        tasks = [asyncio.create_task(run(number)) for number in range(n_runners)]
        try:
            yield tasks
        finally:
            for task in tasks:
                task.cancel()
            await soon(asyncio.wait(tasks))

    async def run(self, agent: LitAgent[Any], store: LightningStore, input: Any = "task", **enqueue: Any) -> Rollout:
        """Enqueue a rollout, let a runner run it, and return it when it has ended."""
        queued = await store.enqueue_rollout(input, **enqueue)
        async with self.running(agent, store):
            return await ended(store, queued.rollout_id)

    # What an agent is given, and what becomes of what it returns

    @pytest.mark.parametrize("agent_kind", ["sync", "async"])
    async def test_what_the_agent_returns_is_the_reward(self, agent_kind: str) -> None:
        store = await self.make_store()
        over = await self.run(agent_of(agent_kind, lambda task: len(task)), store, "four")
        assert over.status == "succeeded"
        assert await reward_of(store, over) == 4.0
        attempt = attempt_of(over)
        assert (attempt.status, attempt.sequence_id) == ("succeeded", 1)
        assert attempt.worker_id is not None
        assert present(await store.get_worker_by_id(attempt.worker_id)).last_heartbeat_time is not None

    @pytest.mark.parametrize("agent_kind", ["sync", "async"])
    async def test_what_the_agent_emits_is_stored_in_order(self, agent_kind: str) -> None:
        def emit(task: Any) -> None:
            emit_message("first")
            emit_reward({"accuracy": 0.5, "speed": 2.0})

        store = await self.make_store()
        over = await self.run(agent_of(agent_kind, emit), store)
        spans = await store.query_spans(over.rollout_id)
        assert [span.name for span in spans] == ["agentlightning.message", "agentlightning.annotation"]
        assert await reward_of(store, over) == 0.5

    async def test_the_agent_is_given_the_resources_of_its_rollout(self) -> None:
        seen: list[tuple[str, str]] = []

        @rollout
        async def agent(task: Any, prompt_template: PromptTemplate, rollout: Rollout) -> None:
            seen.append((prompt_template.template, rollout.rollout_id))

        store = await self.make_store()
        older = await store.add_resources({"main_prompt": PromptTemplate(template="older")})
        await store.add_resources({"main_prompt": PromptTemplate(template="newer")})
        first = await self.run(agent, store, resources_id=older.resources_id)
        second = await self.run(agent, store)
        assert seen == [("older", first.rollout_id), ("newer", second.rollout_id)]

    async def test_the_mode_chooses_the_variant_of_the_agent(self) -> None:
        class Variants(LitAgent[Any]):
            def training_rollout(self, task: Any, resources: NamedResources, rollout: Rollout) -> float:
                return 1.0

            def validation_rollout(self, task: Any, resources: NamedResources, rollout: Rollout) -> float:
                return 2.0

        store = await self.make_store()
        runs = [await self.run(Variants(), store, mode=mode) for mode in ("train", "val", "test", None)]
        assert [await reward_of(store, over) for over in runs] == [1.0, 2.0, 2.0, 2.0]

    # Failures

    @pytest.mark.parametrize("agent_kind", ["sync", "async"])
    async def test_an_agent_that_raises_fails_with_its_cause(self, agent_kind: str) -> None:
        def fail(task: Any) -> None:
            raise KeyError("answer")

        store = await self.make_store()
        over = await self.run(agent_of(agent_kind, fail), store)
        assert (over.status, attempt_of(over).status) == ("failed", "failed")
        assert failure_of(over)["type"] == "KeyError"
        assert "answer" in failure_of(over)["message"]
        (span,) = await store.query_spans(over.rollout_id)
        assert span.name == "agentlightning.exception"

    async def test_an_agent_that_would_end_the_process_fails_only_its_attempt(self) -> None:
        def leave(task: str) -> float:
            if task == "leave":
                raise SystemExit(3)
            return 1.0

        store = await self.make_store()
        assert (await self.run(agent_of("async", leave), store, "leave")).status == "failed"
        assert (await self.run(agent_of("sync", leave), store, "leave")).status == "failed"
        assert (await self.run(agent_of("async", leave), store, "stay")).status == "succeeded"

    async def test_what_is_neither_a_reward_nor_spans_fails_the_attempt(self) -> None:
        store = await self.make_store()
        over = await self.run(agent_of("async", lambda task: "a text"), store)
        assert over.status == "failed"
        assert failure_of(over)["type"] == "InvalidResult"

    @pytest.mark.parametrize("agent_kind", ["sync", "async"])
    async def test_an_agent_runs_out_of_its_time(self, agent_kind: str) -> None:
        release = threading.Event()

        @rollout
        async def in_loop(task: Any) -> None:
            await asyncio.Event().wait()

        @rollout
        def in_thread(task: Any) -> None:
            release.wait(PATIENCE_SECONDS)

        store = await self.make_store()
        agent = in_thread if agent_kind == "sync" else in_loop
        over = await self.run(agent, store, config=RolloutConfig(timeout_seconds=0.05))
        release.set()
        assert (over.status, attempt_of(over).status) == ("failed", "timeout")

    # Faults

    async def test_a_fault_is_run_again_without_using_up_an_attempt(self) -> None:
        @rollout
        async def agent(task: Any, rollout: AttemptedRollout) -> float:
            if rollout.attempt.sequence_id == 1:
                raise Fault("the model's server went away")
            return 1.0

        store = await self.make_store()
        over = await self.run(agent, store, config=RolloutConfig(max_attempts=1))
        assert over.status == "succeeded"
        first, second = await store.query_attempts(over.rollout_id)
        assert "the model's server went away" in (first.metadata or {})["fault"]
        assert second.status == "succeeded"

    async def test_spans_that_cannot_be_stored_are_a_fault(self) -> None:
        class Forgetful(InMemoryLightningStore):
            refusals = 1

            async def add_many_spans(self, spans: Sequence[Span]) -> Sequence[Span]:
                if self.refusals > 0:
                    raise OSError("no space left")
                return await super().add_many_spans(spans)

        store = Forgetful()

        @rollout
        async def agent(task: Any, rollout: AttemptedRollout) -> float:
            store.refusals = 1 if rollout.attempt.sequence_id == 1 else 0
            return 1.0

        over = await self.run(agent, store)
        assert (over.status, attempt_of(over).sequence_id) == ("succeeded", 2)
        assert await reward_of(store, over) == 1.0

    # Cancellation

    async def test_the_agent_of_a_cancelled_rollout_is_stopped_and_the_next_rollout_runs(self) -> None:
        started, stopped = asyncio.Event(), asyncio.Event()

        @rollout
        async def agent(task: str) -> float:
            if task == "next":
                return 1.0
            started.set()
            try:
                await asyncio.Event().wait()
            finally:
                stopped.set()
            return 0.0

        store = await self.make_store()
        first = await store.enqueue_rollout("first")
        following = await store.enqueue_rollout("next")
        async with self.running(agent, store):
            await soon(started.wait())
            await store.update_rollout(first.rollout_id, status="cancelled")
            await soon(stopped.wait())
            assert (await ended(store, following.rollout_id)).status == "succeeded"
        over = await ended(store, first.rollout_id)
        assert (over.status, attempt_of(over).status) == ("cancelled", "failed")

    async def test_a_runner_that_is_cancelled_gives_its_rollout_back(self) -> None:
        started, stopped = asyncio.Event(), asyncio.Event()

        @rollout
        async def agent(task: Any, rollout: AttemptedRollout) -> float:
            if rollout.attempt.sequence_id > 1:
                return 1.0
            started.set()
            try:
                await asyncio.Event().wait()
            finally:
                stopped.set()
            return 0.0

        store = await self.make_store()
        queued = await store.enqueue_rollout("task", config=RolloutConfig(max_attempts=1))
        async with self.running(agent, store) as tasks:
            await soon(started.wait())
        assert stopped.is_set()
        assert all(task.cancelled() for task in tasks)
        async with self.running(agent, store):
            over = await ended(store, queued.rollout_id)
        assert (over.status, attempt_of(over).sequence_id) == ("succeeded", 2)

    # Its own life

    async def test_it_ends_at_its_limit(self) -> None:
        store = await self.make_store()
        for number in range(3):
            await store.enqueue_rollout(number)
        runner = self.make_runner(max_rollouts=2)
        with runner.run_context(agent=agent_of("async", lambda task: task), store=store):
            await soon(runner.iter())
        assert [over.status for over in await store.query_rollouts()] == ["succeeded", "succeeded", "queuing"]

    @pytest.mark.parametrize("event_kind", [asyncio.Event, threading.Event])
    async def test_nothing_is_claimed_once_its_event_is_set(
        self, event_kind: type[asyncio.Event] | type[threading.Event]
    ) -> None:
        event = event_kind()

        def work(task: int) -> float:
            if task == 1:
                event.set()
            return 1.0

        store = await self.make_store()
        for number in range(5):
            await store.enqueue_rollout(number)
        runner = self.make_runner()
        with runner.run_context(agent=agent_of("async", work), store=store):
            await soon(runner.iter(event=event))
        assert [over.status for over in await store.query_rollouts()] == ["succeeded"] * 2 + ["queuing"] * 3

    @pytest.mark.parametrize("event_kind", [asyncio.Event, threading.Event])
    async def test_its_event_ends_the_wait_for_work(
        self, event_kind: type[asyncio.Event] | type[threading.Event]
    ) -> None:
        event = event_kind()
        store = await self.make_store()
        queued = await store.enqueue_rollout("task")
        runner = self.make_runner()
        with runner.run_context(agent=agent_of("async", lambda task: None), store=store):
            running = asyncio.create_task(runner.iter(event=event))
            await ended(store, queued.rollout_id)
            event.set()
            await soon(running)

    async def test_step_returns_the_rollout_when_it_has_ended(self) -> None:
        store = await self.make_store()
        queued = await store.enqueue_rollout("queued")
        runner = self.make_runner()
        with runner.run_context(agent=agent_of("async", lambda task: 0.5), store=store):
            over = await soon(runner.step("now", mode="val"))
        assert (over.input, over.mode, over.status) == ("now", "val", "succeeded")
        assert await reward_of(store, over) == 0.5
        assert present(await store.get_rollout_by_id(queued.rollout_id)).status == "queuing"

    async def test_step_raises_what_the_agent_raised(self) -> None:
        def fail(task: Any) -> None:
            raise KeyError("answer")

        store = await self.make_store()
        runner = self.make_runner()
        with runner.run_context(agent=agent_of("async", fail), store=store), pytest.raises(KeyError, match="answer"):
            await soon(runner.step("task"))

    async def test_many_runners_keep_their_rollouts_apart(self) -> None:
        @rollout
        async def agent(task: int) -> float:
            for number in range(3):
                emit_message(f"{task}: {number}")
                await asyncio.sleep(0)
            return float(task)

        store = await self.make_store()
        queued = [await store.enqueue_rollout(number) for number in range(64)]
        async with self.running(agent, store, n_runners=16):
            done = [await ended(store, each.rollout_id) for each in queued]
        assert [await reward_of(store, over) for over in done] == [float(number) for number in range(64)]
        for over in done:
            spans = await store.query_spans(over.rollout_id)
            said = [span.attributes.get("agentlightning.message.body") for span in spans]
            assert said == [*(f"{over.input}: {number}" for number in range(3)), None]

    async def test_sync_agents_run_at_the_same_time(self) -> None:
        meeting = threading.Barrier(2, timeout=PATIENCE_SECONDS)
        store = await self.make_store()
        queued = [await store.enqueue_rollout(number) for number in range(2)]
        async with self.running(agent_of("sync", lambda task: meeting.wait() * 0.0), store, n_runners=2):
            done = [await ended(store, each.rollout_id) for each in queued]
        assert [over.status for over in done] == ["succeeded", "succeeded"]

    async def test_hooks_are_told_the_four_moments_of_an_attempt(self) -> None:
        told: list[Any] = []

        class Listener:
            def lightning_rollout_start(self, attempt: Attempt) -> None:
                told.append("rollout starts")

            def lightning_trace_start(self) -> None:
                told.append("trace starts")

            def lightning_trace_end(self) -> None:
                told.append("trace ends")

            def lightning_rollout_end(self, rollout: Rollout, attempt: Attempt, reward: float | None) -> None:
                told.append((rollout.status, attempt.status, reward))

        store = await self.make_store()
        await store.enqueue_rollout("task")
        runner = self.make_runner(max_rollouts=1)
        agent = agent_of("async", lambda task: 0.25)
        with runner.run_context(agent=agent, store=store, hooks=Listener()):
            await soon(runner.iter())
        assert told == ["rollout starts", "trace starts", "trace ends", ("succeeded", "succeeded", 0.25)]


def agent_of(kind: str, function: Callable[[Any], Any]) -> LitAgent[Any]:
    """Make an agent, sync or async, that returns what a function makes of its task."""

    def in_thread(task: Any) -> Any:
        return function(task)

    async def in_loop(task: Any) -> Any:
        return function(task)

    return rollout(in_thread if kind == "sync" else in_loop)


async def ended(store: LightningStore, rollout_id: str) -> Rollout:
    """Return a rollout when it has ended."""
    (over,) = await soon(store.wait_for_rollouts(rollout_ids=[rollout_id]))
    return over


async def reward_of(store: LightningStore, over: Rollout) -> float | None:
    """Return the reward of a rollout's newest attempt."""
    return find_final_reward(await store.query_spans(over.rollout_id, "latest"))


def attempt_of(over: Rollout) -> Attempt:
    """Return a rollout's newest attempt, which has to be there."""
    assert isinstance(over, AttemptedRollout), f"{over.rollout_id} has no attempt"
    return over.attempt


def failure_of(over: Rollout) -> dict[str, str]:
    """Return why a rollout's newest attempt failed, as its metadata say."""
    failure: dict[str, str] = (attempt_of(over).metadata or {})["failure"]
    return failure
