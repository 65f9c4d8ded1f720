"""Rewards that are written with the key of an attempt never take the place of what the runner recorded."""

import asyncio
from contextlib import aclosing
from typing import Any

import pytest
from lightning_http import LightningStoreClient, LightningStoreServer

from lightning_core.adapter import TraceToTrajectories
from lightning_core.agent import rollout
from lightning_core.algorithm import run_batch
from lightning_core.emitter import emit_reward, find_final_reward, find_reward_spans, get_reward_value
from lightning_core.errors import InvalidRequest
from lightning_core.runner import LitAgentRunner
from lightning_core.testing.adapter import TraceBuilder
from lightning_core.tracer import OtelTracer
from lightning_core.types import AttemptedRollout, Span


def reward_span(of: AttemptedRollout, value: float, *, sequence_id: int = 0) -> Span:
    made = emit_reward(value, propagate=False)
    attempt = of.attempt
    span = Span.from_core_fields(made, rollout_id=attempt.rollout_id, attempt_id=attempt.attempt_id)
    return span.model_copy(update={"sequence_id": sequence_id})


@pytest.fixture
async def claimed(algorithm: LightningStoreClient, runner: LightningStoreClient) -> AttemptedRollout:
    await algorithm.enqueue_rollout("task")
    claimed = await runner.dequeue_rollout("w-1")
    assert claimed is not None
    return claimed


@pytest.fixture
async def agent(guarded: LightningStoreServer, runner: LightningStoreClient, claimed: AttemptedRollout):
    """What an agent can do with its attempt's key."""
    key = runner.attempt_key(claimed.attempt)
    async with aclosing(LightningStoreClient(guarded.url, key=key)) as client:
        yield client


async def rewards(store: LightningStoreClient, of: AttemptedRollout) -> list[float | None]:
    """All rewards that are recorded, whether they count or not."""
    return [get_reward_value(span) for span in await store.query_spans(of.rollout_id)]


async def test_algorithms_see_the_graders_reward_whatever_the_agent_writes_with_its_key(
    guarded: LightningStoreServer, algorithm: LightningStoreClient, runner: LightningStoreClient
) -> None:
    async def write(of: AttemptedRollout, value: float, sequence_id: int = 0) -> None:
        key = runner.attempt_key(of.attempt)
        async with aclosing(LightningStoreClient(guarded.url, key=key)) as client:
            await client.add_span(reward_span(of, value, sequence_id=sequence_id))

    @rollout
    async def greedy(task: str, rollout: AttemptedRollout) -> str:
        await write(rollout, 50.0)
        return "answer"

    async def grade(rollout: AttemptedRollout) -> float:
        await write(rollout, 99.0, sequence_id=1_000_000)
        return 0.1

    class AfterTheEnd:
        async def lightning_rollout_end(self, rollout: AttemptedRollout, reward: float | None) -> None:
            assert reward == 0.1
            await write(rollout, 1234.0, sequence_id=2_000_000)

    works = LitAgentRunner[Any](OtelTracer(), max_rollouts=1, reward=grade)
    with works.run_context(agent=greedy, store=runner, hooks=AfterTheEnd()):
        running = asyncio.create_task(works.iter())
        (outcome,) = (await run_batch(algorithm, ["task"], mode="train")).outcomes
        await running

    spans = await algorithm.query_spans(outcome.rollout.rollout_id)
    assert sorted(filter(None, map(get_reward_value, spans))) == [0.1, 50.0, 99.0, 1234.0]
    assert (outcome.reward, find_final_reward(spans)) == (0.1, 0.1)
    assert [get_reward_value(span) for span in find_reward_spans(spans)] == [0.1]
    assert TraceToTrajectories().adapt(spans).final_reward == 0.1


@pytest.mark.parametrize("status", ["succeeded", "failed", "timeout"])
async def test_spans_of_an_agents_key_after_the_end_are_kept_and_their_rewards_do_not_count(
    status: Any,
    algorithm: LightningStoreClient,
    agent: LightningStoreClient,
    claimed: AttemptedRollout,
) -> None:
    await agent.add_span(reward_span(claimed, 0.3))
    await algorithm.update_attempt(claimed.rollout_id, claimed.attempt.attempt_id, status=status)

    await agent.add_span(reward_span(claimed, 1234.0))

    spans = await algorithm.query_spans(claimed.rollout_id)
    assert [span.attributes["agentlightning.reported"] for span in spans] == ["live", "late"]
    assert await rewards(algorithm, claimed) == [0.3, 1234.0]
    assert find_final_reward(spans) == 0.3


async def test_otlp_with_an_agents_key_after_the_end_changes_no_reward(
    guarded: LightningStoreServer,
    algorithm: LightningStoreClient,
    runner: LightningStoreClient,
    claimed: AttemptedRollout,
    ask: Any,
) -> None:
    await algorithm.update_attempt(claimed.rollout_id, claimed.attempt.attempt_id, status="succeeded")
    attributes = [
        {"key": "agentlightning.reward.0.name", "value": {"stringValue": "primary"}},
        {"key": "agentlightning.reward.0.value", "value": {"doubleValue": 50.0}},
        {"key": "agentlightning.reported", "value": {"stringValue": "live"}},  # its own word is not believed
    ]
    span = {"traceId": "0" * 31 + "1", "spanId": "0" * 15 + "1", "name": "reward", "attributes": attributes}
    key = runner.attempt_key(claimed.attempt)
    headers = {"Authorization": f"Bearer {key}"}
    body = {"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}
    status, _ = await ask("POST", f"{guarded.url}/v1/traces", json=body, headers=headers)
    assert status == 200
    assert await rewards(algorithm, claimed) == [50.0]
    assert find_final_reward(await algorithm.query_spans(claimed.rollout_id)) is None


async def test_reward_that_the_runner_brings_after_the_end_counts(
    algorithm: LightningStoreClient, runner: LightningStoreClient, claimed: AttemptedRollout
) -> None:
    await runner.update_attempt(claimed.rollout_id, claimed.attempt.attempt_id, status="succeeded")
    await runner.add_span(reward_span(claimed, 0.2))
    assert find_final_reward(await algorithm.query_spans(claimed.rollout_id)) == 0.2


def test_rewards_of_single_calls_are_the_runners_alone_where_it_recorded_one() -> None:
    trace = TraceBuilder()
    trace.call([1], [2])
    trace.reward(50.0)
    trace.call([1, 2, 3], [4])
    trace.reward(0.1)
    reported = trace.spans[1]
    reported.attributes["agentlightning.reported"] = "live"
    (row,) = TraceToTrajectories().adapt(trace.spans).rows
    assert row.rewards == (None, 0.1)


async def test_no_sequence_id_of_an_agents_key_leaves_the_attempt_without_numbers(
    agent: LightningStoreClient, runner: LightningStoreClient, claimed: AttemptedRollout
) -> None:
    with pytest.raises(InvalidRequest, match="sequence_id is 4503599627370496; with an attempt's key it is at most"):
        await agent.add_span(reward_span(claimed, 1.0, sequence_id=2**52))
    await agent.add_span(reward_span(claimed, 1.0, sequence_id=2**48))
    number = await runner.get_next_span_sequence_id(claimed.rollout_id, claimed.attempt.attempt_id)
    assert await runner.add_span(reward_span(claimed, 2.0, sequence_id=number)) is not None
