import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import httpx
import openai
import pytest

from lightning_core.adapter.usage import usage_in
from lightning_core.agent import rollout
from lightning_core.algorithm import describe_failure
from lightning_core.emitter import emit_annotation
from lightning_core.errors import Fault
from lightning_core.runner import LitAgentRunner
from lightning_core.runner.clients import PATIENCE_SECONDS
from lightning_core.store import InMemoryLightningStore
from lightning_core.testing.store.base import present, rollout_status
from lightning_core.tracer import OtelTracer
from lightning_core.types import PromptTemplate, ResourcesUpdate, Rollout, RolloutConfig, Span
from tests.runner.conftest import look_at

if TYPE_CHECKING:
    from tests.runner.conftest import LoopClock, MakeAgent, RunAgent

pytestmark = pytest.mark.usefixtures("nothing_left_running")


async def test_a_fault_that_names_the_rollout_is_warned_of_once_a_run(
    store: InMemoryLightningStore, run_agent: "RunAgent", caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    @rollout
    def agent(task: Any, rollout: Rollout) -> None:
        raise Fault(f"http://127.0.0.1:9/rollout/{rollout.rollout_id} is out of reach")

    await store.enqueue_rollout(None)
    await run_agent(agent, attempts=2)

    assert [each.levelname for each in caplog.records if each.msg.startswith("lightning.fault")] == ["WARNING", "INFO"]


def refuse(**headers: str) -> float:
    answer = httpx.Response(
        429,
        headers={name.replace("_", "-"): each for name, each in headers.items()},
        request=httpx.Request("POST", "http://127.0.0.1/v1"),
    )
    raise openai.RateLimitError("too many requests", response=answer, body=None)


@contextmanager
def on_pause(call: Callable[[], object]) -> Iterator[None]:
    """Call a function whenever a runner begins to wait for a model."""

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "its runner waits for" in record.getMessage():
                call()

    log, handler = logging.getLogger("lightning_core.runner.outcome"), Handler()
    before = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.setLevel(before)
        log.removeHandler(handler)


async def test_a_rollout_is_kept_back_longer_each_time_its_model_says_there_are_too_many_requests(
    make_agent: "MakeAgent", store: InMemoryLightningStore, loop_clock: "LoopClock"
) -> None:
    asked = 0

    def agent() -> float:
        nonlocal asked
        asked += 1
        return 1.0 if asked == 4 else refuse()

    queued = await store.enqueue_rollout("task")
    runner = LitAgentRunner(OtelTracer(), max_rollouts=4)
    passing = on_pause(partial(loop_clock.advance, 1.3 * PATIENCE_SECONDS))
    with runner.run_context(agent=make_agent(agent), store=store), passing:
        await runner.iter()

    assert await rollout_status(store, queued.rollout_id) == "succeeded"
    *faults, last = await store.query_attempts(queued.rollout_id)
    pauses = [(each.metadata or {})["pause_seconds"] for each in faults]
    assert 0 < pauses[0] < pauses[1] < pauses[2]
    assert [(each.metadata or {})["fault"] for each in faults] == ["RateLimitError: too many requests"] * 3
    assert "fault" not in (last.metadata or {})


@pytest.mark.parametrize("by", ["event", "cancelled rollout", "cancelled runner"])
async def test_a_runner_that_waits_for_a_model_stops_at_once(store: InMemoryLightningStore, by: str) -> None:
    waits, stop = asyncio.Event(), asyncio.Event()

    @rollout
    async def agent(task: Any) -> float:
        return refuse(retry_after="60")

    queued = await store.enqueue_rollout("task")
    runner = LitAgentRunner(OtelTracer(), max_rollouts=1)
    with runner.run_context(agent=agent, store=store), on_pause(waits.set):
        running = asyncio.ensure_future(runner.iter(event=stop))
        async with asyncio.timeout(30):
            await waits.wait()
            if by == "event":
                stop.set()
            elif by == "cancelled rollout":
                await store.update_rollout(queued.rollout_id, status="cancelled")
            else:
                running.cancel()
            await asyncio.wait((running,))

    assert await rollout_status(store, queued.rollout_id) == ("cancelled" if by == "cancelled rollout" else "requeuing")


async def test_a_rollout_that_waits_for_its_model_does_not_run_out_of_its_time(run_agent: "RunAgent") -> None:
    @rollout
    async def agent(task: Any) -> float:
        return refuse(retry_after="60")

    ran = await run_agent(agent, config=RolloutConfig(timeout_seconds=1.0))

    assert (ran.rollout.status, ran.attempt.status) == ("requeuing", "failed")
    assert (ran.attempt.metadata or {})["pause_seconds"] < 1.0


async def test_a_model_that_was_never_within_reach_is_not_waited_for(
    store: InMemoryLightningStore, loop_clock: "LoopClock"
) -> None:
    @rollout
    async def agent(task: str) -> float:
        if task == "fine":
            return 1.0
        raise openai.APIConnectionError(request=httpx.Request("POST", "http://127.0.0.1/v1"))

    ids = [(await store.enqueue_rollout(task)).rollout_id for task in ("early", "fine", "late")]
    runner = LitAgentRunner(OtelTracer(), max_rollouts=3)
    with runner.run_context(agent=agent, store=store), on_pause(partial(loop_clock.advance, PATIENCE_SECONDS)):
        await runner.iter()

    early, _, late = [(await look_at(store, each)).attempt.metadata or {} for each in ids]
    assert early["pause_seconds"] == 0
    assert late["pause_seconds"] > 0


async def test_rollout_that_had_too_many_faults_says_so(run_agent: "RunAgent", store: InMemoryLightningStore) -> None:
    @rollout
    async def agent(task: Any) -> None:
        raise Fault("no such host:\n  models")

    ran = await run_agent(agent, attempts=4)

    assert ran.rollout.status == "failed"
    assert len(await store.query_attempts(ran.rollout.rollout_id)) == 4
    places = ", ".join(f"attempt {number} on worker-0" for number in (1, 2, 3, 4))
    told = (
        f"fault: given up after 4 faults, none of which is the agent's failure: {places}: Fault: no such host: models"
    )
    assert describe_failure(ran.rollout) == told


async def test_resources_that_are_gone_are_a_fault(run_agent: "RunAgent") -> None:
    class Forgetful(InMemoryLightningStore):
        async def get_resources_by_id(self, resources_id: str) -> ResourcesUpdate | None:
            return None

    @rollout
    async def agent(task: Any) -> float:
        return 1.0

    store = Forgetful()
    update = await store.add_resources({"prompt": PromptTemplate(template="x")})
    ran = await run_agent(agent, "task", on=store)

    attempt = ran.attempt
    assert attempt.metadata == {
        "fault": f"Fault: the resources {update.resources_id} of rollout {ran.rollout.rollout_id} are not there"
    }


@pytest.mark.parametrize("returned", [False, True], ids=["recorded", "returned"])
async def test_spans_that_cannot_be_stored_are_a_fault(returned: bool, run_agent: "RunAgent") -> None:
    class Full(InMemoryLightningStore):
        async def add_many_spans(self, spans: Any) -> list[Span]:
            raise OSError("no space left")

    @rollout
    async def agent(task: Any) -> Any:
        span = Span.from_attributes(name="own", attributes={}, rollout_id="", attempt_id="", sequence_id=0)
        return [span] if returned else 1.0

    store = Full()
    ran = await run_agent(agent, "task", on=store)

    attempt = ran.attempt
    assert attempt.metadata == {"fault": "OSError: no space left"}
    (again,) = await store.query_rollouts()
    assert again.status == "requeuing"


async def test_fault_of_a_step_is_raised_and_nobody_else_runs_it(store: InMemoryLightningStore) -> None:
    @rollout
    async def agent(task: Any) -> None:
        raise Fault("no such host")

    runner = LitAgentRunner(OtelTracer())
    with runner.run_context(agent=agent, store=store), pytest.raises(Fault, match="no such host"):
        await runner.step("task")

    (ended,) = await store.query_rollouts()
    assert ended.status == "cancelled"
    attempt = present(await store.get_latest_attempt(ended.rollout_id))
    assert attempt.metadata == {"fault": "Fault: no such host"}
    assert await store.dequeue_rollout() is None


@pytest.mark.parametrize("when", ["at the delivery", "after it"])
async def test_what_an_attempt_has_used_counts_also_when_its_end_goes_wrong(when: str) -> None:
    class Failing(InMemoryLightningStore):
        async def add_many_spans(self, spans: Any) -> Sequence[Span]:
            if when == "at the delivery":
                raise OSError("no space left")
            await super().add_many_spans(spans)
            return []  # as to a repeated delivery: then the store is asked

        async def query_spans(self, *arguments: Any, **options: Any) -> Any:
            raise OSError("no space left")

    @rollout
    async def agent(task: Any) -> None:
        emit_annotation({"gen_ai.operation.name": "chat", "gen_ai.usage.input_tokens": 100})

    class Endings:
        spans: Sequence[Span] = ()

        def lightning_rollout_end(self, spans: Sequence[Span]) -> None:
            self.spans = spans

    store, endings = Failing(), Endings()
    queued = await store.enqueue_rollout("task")
    runner = LitAgentRunner(OtelTracer(), max_rollouts=1)
    with runner.run_context(agent=agent, store=store, hooks=endings):
        await runner.iter()

    attempt = present(await store.get_latest_attempt(queued.rollout_id))
    assert attempt.metadata is not None
    assert attempt.metadata["fault"] == "OSError: no space left"
    assert usage_in(attempt.metadata).input_tokens == 100
    assert len(endings.spans) == 1
