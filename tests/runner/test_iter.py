import asyncio
import logging
from typing import TYPE_CHECKING, Any

import pytest

from lightning_core.agent import rollout
from lightning_core.emitter import emit_message, emit_reward
from lightning_core.errors import LightningError, StoreClosed
from lightning_core.plugins import Hooks
from lightning_core.runner import LitAgentRunner
from lightning_core.store import InMemoryLightningStore
from lightning_core.testing.store.base import present
from lightning_core.tracer import OtelTracer
from lightning_core.types import Attempt, AttemptedRollout, Rollout, RolloutConfig

if TYPE_CHECKING:
    from tests.runner.conftest import RunAgent

pytestmark = pytest.mark.usefixtures("nothing_left_running")


@rollout
async def succeeds(task: Any) -> float:
    return 1.0


class AwaitedStore(InMemoryLightningStore):
    """Tells when a runner waits for work."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = asyncio.Event()

    async def dequeue_rollout(self, *args: Any, **kwargs: Any) -> AttemptedRollout | None:
        self.asked.set()
        return await super().dequeue_rollout(*args, **kwargs)


class Endings:
    """Told of each attempt that ended."""

    def __init__(self, store: InMemoryLightningStore) -> None:
        self._store = store
        self.told: list[tuple[Any, ...]] = []
        self.stored: list[str] = []
        """The attempt's status in the store when the hook was called."""

    async def lightning_rollout_end(self, rollout: Rollout, attempt: Attempt, reward: float | None) -> None:
        stored = present(await self._store.get_latest_attempt(rollout.rollout_id))
        self.stored.append(stored.status)
        self.told.append((rollout.input, rollout.status, attempt.status, reward))


# How far it goes


def test_limits_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="max_rollouts is 0; it is at least 1, or None for no limit"):
        LitAgentRunner(OtelTracer(), max_rollouts=0)


async def test_claim_that_fails_while_it_is_cancelled_does_not_hide_the_cancellation(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Abrupt(AwaitedStore):
        async def dequeue_rollout(self, *args: Any, **kwargs: Any) -> AttemptedRollout | None:
            try:
                return await super().dequeue_rollout(*args, **kwargs)
            except asyncio.CancelledError:
                raise ConnectionError("the line was cut") from None

    store = Abrupt()
    runner = LitAgentRunner(OtelTracer())
    with runner.run_context(agent=succeeds, store=store):
        running = asyncio.create_task(runner.iter(event=asyncio.Event()))
        await store.asked.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    assert "lightning.claim_failed worker_id=worker-0" in caplog.text


async def test_runner_that_is_cancelled_cancels_its_agent_and_keeps_what_it_recorded(
    store: InMemoryLightningStore,
) -> None:
    started, cleaned_up = asyncio.Event(), asyncio.Event()

    @rollout
    async def agent(task: Any) -> None:
        emit_message("begun")
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            emit_message("cleaned up")
            cleaned_up.set()

    queued = await store.enqueue_rollout("task")
    runner = LitAgentRunner(OtelTracer())
    with runner.run_context(agent=agent, store=store):
        running = asyncio.create_task(runner.iter())
        await started.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    assert cleaned_up.is_set()
    spans = await store.query_spans(queued.rollout_id)
    assert [span.attributes["agentlightning.message.body"] for span in spans] == ["begun", "cleaned up"]
    attempt = present(await store.get_latest_attempt(queued.rollout_id))
    assert attempt.metadata == {"fault": "its runner was stopped"}  # neither its success nor its failure
    (again,) = await store.query_rollouts()
    assert again.status == "requeuing"


# Retries, and results that come too late


# A store that fails


async def test_runner_whose_store_is_closed_ends_with_that_error() -> None:
    store = AwaitedStore()
    runner = LitAgentRunner(OtelTracer())
    with runner.run_context(agent=succeeds, store=store):
        running = asyncio.create_task(runner.iter())
        await store.asked.wait()
        await store.aclose()
        with pytest.raises(StoreClosed):
            await running


async def test_runner_that_cannot_record_an_outcome_ends_with_that_error() -> None:
    class Failing(InMemoryLightningStore):
        async def update_attempt(self, *args: Any, **kwargs: Any) -> Attempt:
            raise ConnectionError("the database is gone")

    store = Failing()
    await store.enqueue_rollout("task")
    runner = LitAgentRunner(OtelTracer())
    with (
        runner.run_context(agent=succeeds, store=store),
        pytest.raises(ConnectionError, match="the database is gone"),
    ):
        await runner.iter()


# Hooks


async def test_hook_is_told_of_each_attempt_when_its_outcome_is_stored(
    store: InMemoryLightningStore, run_agent: "RunAgent"
) -> None:
    endings = Endings(store)
    failures = iter([ValueError("flaky")])

    @rollout
    def agent(task: Any) -> float:
        emit_reward(0.1)
        for failure in failures:
            raise failure
        return 0.5

    config = RolloutConfig(max_attempts=2, retry_condition=["failed"])
    await run_agent(agent, "task", attempts=2, config=config, hooks=Hooks([endings]))

    assert endings.told == [("task", "requeuing", "failed", None), ("task", "succeeded", "succeeded", 0.5)]
    assert endings.stored == ["failed", "succeeded"]


# Its own life


async def test_runner_that_is_not_set_up_says_so(store: InMemoryLightningStore) -> None:
    runner = LitAgentRunner(OtelTracer())
    with pytest.raises(LightningError, match="this runner has no store; call init_worker, or use run_context"):
        _ = runner.store
    with pytest.raises(LightningError, match="this runner has no agent; call init, or use run_context"):
        _ = runner.agent


async def test_run_context_undoes_what_it_did_even_after_an_error(store: InMemoryLightningStore) -> None:
    tracer = OtelTracer()
    runner = LitAgentRunner(tracer)
    with pytest.raises(ZeroDivisionError), runner.run_context(agent=succeeds, store=store) as entered:
        _ = 1 / (entered is not runner)

    with pytest.raises(LightningError, match="no store"):
        _ = runner.store
    with pytest.raises(LightningError, match="not initialised"):
        _ = tracer.provider


def test_logger_of_a_runner_is_quiet_when_all_goes_well(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        store = InMemoryLightningStore()
        await store.enqueue_rollout("task")
        runner = LitAgentRunner(OtelTracer(), max_rollouts=1)
        with runner.run_context(agent=succeeds, store=store):
            await runner.iter()

    with caplog.at_level(logging.INFO):
        asyncio.run(run())
    assert [record for record in caplog.records if record.name.startswith("lightning_core")] == []
