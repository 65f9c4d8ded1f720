"""A grader that asks a model: its calls are recorded, count in the budget, and are nobody's training data."""

import asyncio
from typing import Any

import pytest
from lightning_proxy.testing import FakeEngine

from lightning_core import LLM, Span, Trainer
from lightning_core.adapter import (
    LlmProxyTraceToTriplet,
    TracerTraceToTriplet,
    TraceToMessages,
    TraceToTrajectories,
    genai,
    read_model_calls,
)
from lightning_core.agent import Grader
from lightning_core.emitter import find_final_reward
from lightning_core.types import NamedResources
from tests.trainer.conftest import models
from tests.trainer.proxy_agents import ask, call, judge

pytestmark = pytest.mark.usefixtures("clean_environment", "openai_backend", "nothing_left_running")


async def spans_of(trainer: Trainer) -> list[Span]:
    (only,) = await trainer.store.query_rollouts()
    return list(await trainer.store.query_spans(only.rollout_id))


@pytest.mark.parametrize("strategy", ["local", pytest.param("processes", marks=pytest.mark.slow)])
async def test_calls_of_a_judge_count_and_are_recorded(engine: FakeEngine, strategy: str) -> None:
    engine.replies = ["ok", "0.25"]
    trainer = Trainer(
        algorithm="baseline",
        strategy=strategy,
        reward=judge,
        llm_proxy={"model_list": models(engine)},
        budget={"calls": 10},
    )
    result = await trainer.fit_async(ask, [1])
    assert (result.status, result.metrics["train_reward"]) == ("succeeded", 0.25)
    assert result.usage.agent.calls == 2
    assert result.budget is not None
    assert result.budget.used["calls"] == 2
    spans = await spans_of(trainer)
    assert [found.purpose for found in read_model_calls(spans)] == [None, "judge"]
    # The reward comes last, so it is of the agent's call and not of the judge's.
    assert find_final_reward(spans) == 0.25
    assert spans[-1].sequence_id > max(found.sequence_id for found in read_model_calls(spans))


async def test_nobody_learns_from_the_calls_of_a_judge(engine: FakeEngine) -> None:
    engine.replies = ["ok", "0.25"]
    trainer = Trainer(algorithm="baseline", reward=judge, llm_proxy={"model_list": models(engine)})
    await trainer.fit_async(ask, ["a"])
    spans = await spans_of(trainer)
    for adapter in (LlmProxyTraceToTriplet(), TracerTraceToTriplet(exclude_llm_call_in_reward=False)):
        (triplet,) = adapter.adapt(spans)
        assert triplet.response["token_ids"] == [ord(character) for character in "ok"]
        assert triplet.reward == 0.25
    (said,) = TraceToMessages().adapt(spans)
    assert [message["content"] for message in said["messages"]] == ["a", "ok"]
    judged = str([ord(character) for character in "0.25"]).strip("[]")
    assert judged not in str(TraceToTrajectories().adapt(spans))
    # They are what would be learned from otherwise.
    unmarked = [
        span.model_copy(update={"attributes": {k: v for k, v in span.attributes.items() if k != genai.PURPOSE}})
        for span in spans
    ]
    assert judged in str(TraceToTrajectories().adapt(unmarked))
    assert len(LlmProxyTraceToTriplet().adapt(unmarked)) == len(TraceToMessages().adapt(unmarked)) == 2


async def test_a_judge_may_have_another_model_than_the_agent(engine: FakeEngine) -> None:
    engine.replies = ["ok", "1"]
    seen: list[NamedResources] = []

    async def with_another(result: Any, llm: LLM, resources: NamedResources) -> float:
        seen.append(resources)
        return float(await asyncio.to_thread(call, llm, str(result)))

    grader = Grader(with_another, model="large")
    trainer = Trainer(algorithm="baseline", reward=grader, llm_proxy={"model_list": models(engine, "small", "large")})
    assert (await trainer.fit_async(ask, [1])).metrics["train_reward"] == 1.0
    assert [received.fields["model"] for received in engine.received] == ["small", "large"]
    (resources,) = seen
    main = resources["main_llm"]
    assert isinstance(main, LLM)
    assert main.model == "small"


async def test_a_judge_that_is_refused_by_the_budget_ends_the_run_and_scores_nothing(engine: FakeEngine) -> None:
    engine.replies = ["ok", "1"]

    async def bears_it(result: Any, llm: LLM) -> float:
        try:
            return float(await asyncio.to_thread(call, llm, "?"))
        except OSError:
            return 0.0

    trainer = Trainer(
        algorithm="baseline", reward=bears_it, llm_proxy={"model_list": models(engine)}, budget={"calls": 3}
    )
    result = await trainer.fit_async(ask, [1, 2])
    assert result.status == "budget"
    assert (result.rollouts.succeeded, result.rollouts.failed, result.rollouts.unfinished) == (1, 0, 1)
    assert len(engine.received) == 3


async def test_a_judge_without_a_model_fails_its_attempts_and_says_what_is_missing(engine: FakeEngine) -> None:
    from lightning_core import rollout
    from lightning_core.errors import NoRewards

    @rollout
    async def says(task: Any) -> str:
        return "?"

    trainer = Trainer(algorithm="baseline", reward=judge)
    with pytest.raises(NoRewards, match="grader judge: MissingResource: grader judge needs a resource of type LLM"):
        await trainer.fit_async(says, [1])
