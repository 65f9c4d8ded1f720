import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from lightning_core.agent import rollout
from lightning_core.emitter import (
    emit_message,
    emit_reward,
    get_message_value,
    get_rewards_from_span,
)
from lightning_core.errors import Fault, NoActiveTracer
from lightning_core.runner import LitAgentRunner
from lightning_core.store import InMemoryLightningStore
from lightning_core.tracer import OtelTracer
from lightning_core.types import AttemptedRollout, Rollout, RolloutConfig, Span, SpanCoreFields
from tests.runner.conftest import Ran, look_at

if TYPE_CHECKING:
    from tests.runner.conftest import LoopClock

pytestmark = pytest.mark.usefixtures("nothing_left_running")


@rollout
async def echo(task: Any) -> Any:
    """Knows nothing of rewards."""
    emit_message("thinking")
    return task


async def graded(
    store: InMemoryLightningStore, grader: Callable[..., Any], input: Any, agent: Any = echo, **enqueue: Any
) -> Ran:
    queued = await store.enqueue_rollout(input, **enqueue)
    runner = LitAgentRunner(OtelTracer(), max_rollouts=1, reward=grader)
    with runner.run_context(agent=agent, store=store):
        await runner.iter()
    return await look_at(store, queued.rollout_id)


@pytest.fixture(params=["sync", "async"])
def make_grader(request: pytest.FixtureRequest) -> Callable[[Callable[[Any], Any]], Callable[..., Any]]:
    """Make a grader of a function of the result: once a sync one, once an async one."""

    def make(body: Callable[[Any], Any]) -> Callable[..., Any]:
        async def in_loop(result: Any) -> Any:
            return body(result)

        def in_thread(result: Any) -> Any:
            return body(result)

        return in_thread if request.param == "sync" else in_loop

    return make


MakeGrader = Callable[[Callable[[Any], Any]], Callable[..., Any]]


@pytest.mark.parametrize("returned", ["text", {"answer": "42"}, ["a", 1], {}, None, 0.25, object], ids=str)
async def test_agent_may_return_anything_and_the_grader_sees_it(
    store: InMemoryLightningStore, make_grader: MakeGrader, returned: Any
) -> None:
    ran = await graded(store, make_grader(lambda result: result == returned), returned)

    assert (ran.rollout.status, ran.reward) == ("succeeded", 1.0)
    message, reward = ran.spans
    assert get_message_value(message) == "thinking"
    assert [(named.name, named.value) for named in get_rewards_from_span(reward)] == [("primary", 1.0)]


async def test_grader_sees_the_task_the_rollout_and_the_stored_spans(store: InMemoryLightningStore) -> None:
    seen: list[Any] = []

    def judge(task: Any, spans: list[Span], rollout: AttemptedRollout) -> float:
        seen.append((task, [(span.name, span.sequence_id) for span in spans], rollout.attempt.sequence_id))
        return 1.0

    await graded(store, judge, "task")

    assert seen == [("task", [("agentlightning.message", 1)], 1)]


async def test_spans_that_the_agent_returned_are_stored_and_seen(store: InMemoryLightningStore) -> None:
    @rollout
    async def agent(task: Any) -> list[Any]:
        return [SpanCoreFields(name="own", attributes={"a": 1})]

    ran = await graded(store, lambda spans: float(spans[0].attributes["a"]), "task", agent)

    assert ran.reward == 1.0
    assert [span.name for span in ran.spans] == ["own", "agentlightning.annotation"]


async def test_grader_has_the_last_word(store: InMemoryLightningStore) -> None:
    @rollout
    async def agent(task: Any) -> None:
        emit_reward(0.1)

    assert (await graded(store, lambda result: 0.9, "task", agent)).reward == 0.9


async def test_what_a_grader_does_is_not_part_of_the_trace(store: InMemoryLightningStore) -> None:
    refused = []

    def judge(result: Any) -> float:
        with pytest.raises(NoActiveTracer):
            emit_message("judging")
        refused.append(True)
        return 1.0

    ran = await graded(store, judge, "task")

    assert refused
    assert len(ran.spans) == 2


# What goes wrong


async def test_grader_that_raises_fails_the_attempt_with_its_cause(
    store: InMemoryLightningStore, make_grader: MakeGrader
) -> None:
    ran = await graded(store, make_grader(lambda result: {}["answer"]), "task")

    assert (ran.rollout.status, ran.attempt.status) == ("failed", "failed")
    assert ran.failure["type"] == "GraderError"
    assert ran.failure["message"].endswith("KeyError: 'answer'")
    assert ran.spans[-1].attributes["exception.type"] == "KeyError"
    assert "test_graders.py" in ran.spans[-1].attributes["exception.stacktrace"]


@pytest.mark.parametrize(
    ("score", "message"),
    [
        (None, "InvalidReward: reward 'primary' must be a number, got None"),
        ("high", "InvalidReward: reward 'primary' must be a number, got 'high'"),
        (float("nan"), "ValueError: reward 'primary' must be finite, got nan"),
        ({}, "ValueError: there is no reward in an empty dict"),
    ],
)
async def test_what_is_no_reward_fails_the_attempt(store: InMemoryLightningStore, score: Any, message: str) -> None:
    def judge(result: Any) -> Any:
        return score

    ran = await graded(store, judge, "task")

    assert ran.rollout.status == "failed"
    assert f"judge: {message}" in ran.failure["message"]


async def test_agent_that_failed_is_not_graded(store: InMemoryLightningStore) -> None:
    calls = []

    @rollout
    async def agent(task: Any) -> None:
        raise ValueError("no answer")

    ran = await graded(store, lambda result: calls.append(result), "task", agent)

    assert ran.failure == {"type": "ValueError", "message": "no answer"}
    assert calls == []


async def test_fault_of_a_grader_is_a_fault(store: InMemoryLightningStore, make_grader: MakeGrader) -> None:
    def unreachable(result: Any) -> float:
        raise Fault("the judge's server went away")

    ran = await graded(store, make_grader(unreachable), "task")

    assert ran.rollout.status == "requeuing"
    assert ran.attempt.metadata == {"fault": "Fault: the judge's server went away"}


async def test_agent_and_grader_share_the_time_of_the_attempt(
    store: InMemoryLightningStore, loop_clock: "LoopClock"
) -> None:
    async def judge(result: Any) -> float:
        loop_clock.advance(60)
        await asyncio.Event().wait()
        return 1.0

    ran = await graded(store, judge, "task", config=RolloutConfig(timeout_seconds=60))

    assert ran.attempt.status == "timeout"
    assert ran.failure == {
        "type": "AgentTimeout",
        "message": "the agent with its grader ran longer than 60 s",
    }


async def test_grader_of_a_cancelled_rollout_is_stopped(store: InMemoryLightningStore) -> None:
    async def judge(result: Any, rollout: Rollout) -> float:
        await store.update_rollout(rollout.rollout_id, status="cancelled")
        await asyncio.Event().wait()
        return 1.0

    ran = await graded(store, judge, "task")

    assert (ran.rollout.status, ran.failure["type"]) == ("cancelled", "AttemptStopped")
