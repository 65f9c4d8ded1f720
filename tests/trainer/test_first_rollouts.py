"""How a run begins: it ends where its first rollouts all fail alike, and says what records its model calls."""

import asyncio
import logging
import sys
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

import httpx
import openai
import pytest
from opentelemetry import trace

from lightning_core import Trainer, rollout
from lightning_core.errors import NoRewards
from lightning_core.runner import clients
from lightning_core.types import Attempt, RolloutConfig

TASKS = list(range(40))
UNREACHABLE = "http://127.0.0.1:9/v1"


def fit(answer: Callable[[int], Any], tasks: list[int] = TASKS, **options: Any) -> int:
    """Measure an agent with two runners, and return how many tasks it was given."""
    asked: list[int] = []

    @rollout
    async def agent(task: int) -> Any:
        asked.append(task)
        return answer(task)

    try:
        Trainer(algorithm="baseline", n_runners=2, **options).fit(agent, tasks)
    finally:
        count = len(asked)
    return count


def refuse(task: int) -> float:
    raise KeyError(f"city {task}")


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (refuse, r"KeyError: 'city \d' \(.*test_first_rollouts\.py:\d+ in refuse\)"),
        (lambda task: f"label {task}", r"InvalidResult: the agent returned a str .*\.py:\d+ in agent\)"),
        (lambda task: float("nan"), r"ValueError: reward 'primary' must be finite.*\.py:\d+ in agent\)"),
        (lambda task: (each for each in [task]), r"InvalidResult: the agent returned a generator \(<.* at 0x.*>\)"),
    ],
    ids=["raises", "returns a text", "returns NaN", "returns what has an address"],
)
def test_a_run_ends_when_its_first_rollouts_fail_for_the_same_reason(answer: Callable[[int], Any], reason: str) -> None:
    asked = 0

    def counted(task: int) -> Any:
        nonlocal asked
        asked += 1
        return answer(task)

    with pytest.raises(NoRewards, match=f"the first 8 rollouts have all failed for the same reason.*: {reason}"):
        fit(counted)
    assert asked < len(TASKS) / 2


@pytest.mark.parametrize(
    ("answer", "options"),
    [
        (refuse, {"stop_on_identical_failures": False}),
        (lambda task: refuse(task) if task % 2 else int("none"), {}),
    ],
    ids=["switched off", "two reasons"],
)
def test_a_run_goes_on_where_it_may_be_another_reason(answer: Callable[[int], Any], options: dict[str, Any]) -> None:
    asked: list[int] = []
    with pytest.raises(NoRewards, match="none of 40 rollouts gave a reward"):
        fit(lambda task: (asked.append(task), answer(task)), **options)
    assert len(asked) == len(TASKS)


def test_a_run_goes_on_once_a_rollout_has_succeeded() -> None:
    assert fit(lambda task: 1.0 if task == 3 else refuse(task)) == len(TASKS)


def limited(task: int, code: str = "rate_limit_exceeded") -> float:
    answer = httpx.Response(429, request=httpx.Request("POST", UNREACHABLE))
    raise openai.RateLimitError(f"{code} of {task}", response=answer, body=None)


@pytest.mark.parametrize("tasks", [TASKS, TASKS[:3]], ids=["many", "few"])
def test_rate_limits_end_a_run_once_its_patience_is_over(tasks: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "PATIENCE_SECONDS", 0.6)
    asked: list[float] = []

    def answer(task: int) -> float:
        asked.append(time.monotonic())
        return limited(task)

    with pytest.raises(NoRewards, match=r"have all failed for the same reason.*: RateLimitError: rate_limit_exceeded"):
        fit(answer, tasks)
    assert asked[-1] - asked[0] > 0.6 / 2
    assert len(asked) < 4 * len(tasks)


def test_a_quota_that_is_used_up_ends_a_run_at_once() -> None:
    pauses: list[float] = []

    class Endings:
        def lightning_rollout_end(self, attempt: Attempt) -> None:
            pauses.append((attempt.metadata or {})["pause_seconds"])

    with pytest.raises(NoRewards, match=r"the first 8 rollouts have all failed for the same reason.*quota"):
        fit(lambda task: limited(task, "insufficient_quota"), hooks=[Endings()])
    assert set(pauses) == {0.0}


def test_a_run_ends_when_its_first_rollouts_all_time_out() -> None:
    asked = []

    @rollout
    async def agent(task: int) -> None:
        asked.append(task)
        await asyncio.Event().wait()

    limits = RolloutConfig(timeout_seconds=0.001)
    message = "the first 8 rollouts .* the agent ran longer than 0.001 s; raise timeout_seconds in rollout_config, or"
    with pytest.raises(NoRewards, match=message):
        Trainer(algorithm="baseline", n_runners=2, rollout_config=limits).fit(agent, TASKS)
    assert len(asked) < len(TASKS) / 2


def test_a_model_server_that_is_down_is_told_once_with_its_url(caplog: pytest.LogCaptureFixture) -> None:
    @rollout
    async def agent(task: int) -> None:
        async with openai.AsyncOpenAI(base_url=UNREACHABLE, api_key="sk-none", max_retries=0) as client:
            await client.chat.completions.create(model="small", messages=[{"role": "user", "content": "Hello"}])

    with (
        caplog.at_level(logging.WARNING),
        pytest.raises(NoRewards, match=f"APIConnectionError: Connection error. .{UNREACHABLE}/chat/completions: "),
    ):
        Trainer(algorithm="baseline", n_runners=2).fit(agent, TASKS)
    assert caplog.text.count(UNREACHABLE) == 1
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize(("count", "is_recorded"), [(1, False), (30, False), (1, True)])
def test_a_client_that_is_not_recorded_is_told_once(
    count: int, is_recorded: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "cohere", ModuleType("cohere"))

    @rollout
    async def agent(task: int) -> float:
        attributes = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "small"} if is_recorded else {}
        with trace.get_tracer("mine").start_as_current_span("chat small", attributes=attributes):
            return 1.0

    Trainer(algorithm="baseline").fit(agent, TASKS[:count])
    told = caplog.text.count("To record cohere: pip install opentelemetry-instrumentation-cohere")
    assert told == (0 if is_recorded else 1)


def test_a_warning_of_opentelemetry_about_each_call_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    class NotGivenHere:
        """As `openai.Omit`, which an instrumentor records, and about which other tests have had their warning."""

    @rollout
    async def agent(task: int) -> float:
        with trace.get_tracer("mine").start_as_current_span("chat") as span:
            span.set_attribute("gen_ai.request.seed", NotGivenHere())  # type: ignore[arg-type]
        return 1.0

    Trainer(algorithm="baseline").fit(agent, TASKS[:5])
    assert caplog.text.count("NotGivenHere") == 1
