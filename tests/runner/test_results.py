import math
from fractions import Fraction
from numbers import Real
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry.sdk.trace import TracerProvider

from lightning_core.agent import rollout
from lightning_core.emitter import emit_reward, get_rewards_from_span
from lightning_core.runner import LitAgentRunner
from lightning_core.store import InMemoryLightningStore
from lightning_core.tracer import OtelTracer, get_active_tracer
from lightning_core.types import Span, SpanCoreFields

if TYPE_CHECKING:
    from tests.runner.conftest import MakeAgent, RunAgent


class Float32:
    """As numpy's: registered as a real number, and no float."""

    def __init__(self, value: float) -> None:
        self.value = value

    def __float__(self) -> float:
        return self.value


Real.register(Float32)


async def test_agent_that_returns_nothing_succeeds_without_a_reward(
    make_agent: "MakeAgent", run_agent: "RunAgent"
) -> None:
    ran = await run_agent(make_agent(lambda: None))

    assert (ran.rollout.status, ran.attempt.status, ran.spans) == ("succeeded", "succeeded", [])
    assert ran.attempt.metadata is None


@pytest.mark.parametrize(
    ("returned", "reward"),
    [(0.25, 0.25), (3, 3.0), (True, 1.0), (False, 0.0), (Fraction(1, 4), 0.25), (Float32(0.5), 0.5), (-1e300, -1e300)],
    ids=lambda value: type(value).__name__,
)
async def test_number_is_the_reward(
    make_agent: "MakeAgent", run_agent: "RunAgent", returned: Any, reward: float
) -> None:
    ran = await run_agent(make_agent(lambda: returned))

    assert ran.rollout.status == "succeeded"
    assert len(ran.spans) == 1
    assert ran.reward == reward
    assert type(ran.reward) is float


async def test_dict_is_named_rewards_of_which_the_first_is_primary(
    make_agent: "MakeAgent", run_agent: "RunAgent"
) -> None:
    ran = await run_agent(make_agent(lambda: {"speed": 2, "accuracy": Float32(0.5), "passed": True}))

    (span,) = ran.spans
    rewards = [(reward.name, reward.value) for reward in get_rewards_from_span(span)]
    assert rewards == [("speed", 2.0), ("accuracy", 0.5), ("passed", 1.0)]


async def test_what_is_returned_counts_after_what_was_emitted(make_agent: "MakeAgent", run_agent: "RunAgent") -> None:
    def agent() -> float:
        emit_reward(0.1)
        return 0.9

    ran = await run_agent(make_agent(agent))

    assert ran.reward == 0.9
    assert len(ran.spans) == 2


async def test_spans_of_all_three_kinds_become_spans_of_the_attempt(
    make_agent: "MakeAgent", run_agent: "RunAgent"
) -> None:
    elsewhere = TracerProvider(shutdown_on_exit=False).get_tracer("elsewhere")

    def agent() -> list[Any]:
        with elsewhere.start_as_current_span("readable") as readable:
            pass
        foreign = Span.from_attributes(name="span", attributes={}, rollout_id="ro-x", attempt_id="at-x", sequence_id=9)
        return [SpanCoreFields(name="core", attributes={"a": 1}), foreign, readable]

    ran = await run_agent(make_agent(agent))

    assert ran.rollout.status == "succeeded"
    assert [(span.name, span.sequence_id) for span in ran.spans] == [("core", 1), ("span", 2), ("readable", 3)]
    assert {(span.rollout_id, span.attempt_id) for span in ran.spans} == {
        (ran.rollout.rollout_id, ran.attempt.attempt_id)
    }
    assert ran.spans[0].attributes == {"a": 1}


async def test_span_that_was_recorded_already_counts_once(store: InMemoryLightningStore) -> None:
    tracer = OtelTracer()

    @rollout
    def agent(task: Any) -> list[Span]:
        emit_reward(0.5)
        return tracer.get_last_trace()

    runner = LitAgentRunner(tracer)
    with runner.run_context(agent=agent, store=store):
        ended = await runner.step("task")

    assert len(await store.query_spans(ended.rollout_id)) == 1


@pytest.mark.parametrize(
    ("returned", "shown"),
    [
        ("0.5", "a str ('0.5')"),
        (b"0.5", "a bytes (b'0.5')"),
        (1 + 2j, "a complex ((1+2j))"),
        ({}, "a dict ({})"),
        ({"accuracy": "high"}, "a dict ({'accuracy': 'high'})"),
        ({"accuracy": None}, "a dict ({'accuracy': None})"),
        ([0.5], "a list ([0.5]) with a float in it"),
        ({0.5}, "a set ({0.5})"),
        ("x" * 1000, "a str ('" + "x" * 78 + "…)"),
    ],
)
async def test_anything_else_fails_with_what_is_allowed(
    make_agent: "MakeAgent", run_agent: "RunAgent", returned: Any, shown: str
) -> None:
    ran = await run_agent(make_agent(lambda: returned))

    assert ran.rollout.status == "failed"
    assert ran.failure == {
        "type": "InvalidResult",
        "message": f"the agent returned {shown}; allowed are None, a number, a dict of numbers by name, or a list of "
        "spans (ReadableSpan, Span or SpanCoreFields)",
    }


BROKEN_REWARDS = [
    ({"agentlightning.reward.0.value": 0.5}, "span 'graded' has a broken reward at 'agentlightning.reward.0'"),
    (
        {"agentlightning.reward.0.name": "score", "agentlightning.reward.0.value": math.inf},
        "span 'graded' has a reward 'score' that is not finite: inf",
    ),
]


@pytest.mark.parametrize("is_returned", [True, False], ids=["returned", "recorded"])
@pytest.mark.parametrize(("attributes", "message"), BROKEN_REWARDS)
async def test_broken_reward_in_a_span_fails_the_attempt(
    run_agent: "RunAgent", attributes: dict[str, Any], message: str, is_returned: bool
) -> None:
    @rollout
    def agent(task: Any) -> Any:
        if is_returned:
            return [SpanCoreFields(name="graded", attributes=attributes)]
        tracer = get_active_tracer()
        assert tracer is not None
        tracer.create_span("graded", attributes)
        return 1.0

    ran = await run_agent(agent)

    assert (ran.rollout.status, ran.failure["type"]) == ("failed", "InvalidResult")
    assert ran.failure["message"].startswith(message)
