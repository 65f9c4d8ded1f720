import asyncio
import functools
import inspect
import json
import logging
import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import pytest

from lightning_core.agent import LitAgent, rollout
from lightning_core.emitter import emit_message
from lightning_core.types import NamedResources, Rollout

if TYPE_CHECKING:
    from tests.runner.conftest import MakeAgent, RunAgent

pytestmark = pytest.mark.usefixtures("nothing_left_running")


def raising(error: BaseException) -> Callable[[], Any]:
    def body() -> None:
        raise error

    return body


async def test_agent_that_raises_fails_with_its_trace_and_its_cause(
    make_agent: "MakeAgent", run_agent: "RunAgent"
) -> None:
    def the_broken_part() -> None:
        emit_message("so far so good")
        try:
            {}["key"]
        except KeyError as exc:
            raise RuntimeError("no answer") from exc

    ran = await run_agent(make_agent(the_broken_part))

    assert (ran.rollout.status, ran.attempt.status) == ("failed", "failed")
    assert ran.failure == {"type": "RuntimeError", "message": "no answer"}
    message, exception = ran.spans
    assert message.name == "agentlightning.message"
    assert exception.name == "agentlightning.exception"
    assert exception.attributes["exception.type"] == "RuntimeError"
    assert exception.attributes["exception.message"] == "no answer"
    assert "the_broken_part" in exception.attributes["exception.stacktrace"]
    assert "KeyError: 'key'" in exception.attributes["exception.stacktrace"]


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ValueError(), "ValueError"),
        (ValueError("no file \udcff"), "no file \ufffd"),
        (Mute(), "<exception str() failed>"),
    ],
    ids=["no text", "a text that no store can keep", "a text that cannot be had"],
)
async def test_error_with_an_odd_text_fails_only_its_attempt(
    make_agent: "MakeAgent", run_agent: "RunAgent", error: Exception, message: str
) -> None:
    ran = await run_agent(make_agent(raising(error)))

    assert ran.failure == {"type": type(error).__name__, "message": message}
    assert "\udcff" not in str(ran.spans[0].attributes)


async def test_failed_attempt_is_a_line_in_the_log(
    make_agent: "MakeAgent", run_agent: "RunAgent", caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "lightning_core"):
        ran = await run_agent(make_agent(raising(ValueError("no answer"))))

    (record,) = [each for each in caplog.records if each.name.startswith("lightning_core")]
    assert (record.levelno, record.getMessage()) == (
        logging.INFO,
        f"lightning.attempt_failed rollout_id={ran.rollout.rollout_id} attempt_id={ran.attempt.attempt_id} "
        "status=failed: ValueError: no answer",
    )


class Panic(BaseException):
    """As extensions written in Rust raise it."""


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (SystemExit(2), "the agent raised SystemExit: 2"),
        (GeneratorExit(), "the agent raised GeneratorExit"),
        (Panic("index out of bounds"), f"the agent raised {__name__}.Panic: index out of bounds"),
    ],
)
async def test_agent_that_would_end_the_process_fails_only_its_attempt(
    make_agent: "MakeAgent", run_agent: "RunAgent", error: BaseException, told: str
) -> None:
    ran = await run_agent(make_agent(raising(error)))

    assert (ran.rollout.status, ran.attempt.status) == ("failed", "failed")
    assert ran.failure == {"type": "AgentError", "message": told}
    assert type(error).__name__ in ran.spans[0].attributes["exception.stacktrace"]


async def test_stop_iteration_fails_the_attempt_instead_of_hanging_it(
    make_agent: "MakeAgent", run_agent: "RunAgent"
) -> None:
    ran = await run_agent(make_agent(lambda: next(iter(()))))

    assert ran.attempt.status == "failed"
    assert "StopIteration" in ran.failure["message"]


async def test_agent_that_cancels_its_own_task_fails_only_its_attempt(run_agent: "RunAgent") -> None:
    @rollout
    async def agent(task: Any) -> None:
        current = asyncio.current_task()
        assert current is not None
        current.cancel()
        await asyncio.sleep(0)

    ran = await run_agent(agent)

    assert ran.failure == {"type": "AgentError", "message": "the agent's task was cancelled, but not by its runner"}


async def test_coroutine_behind_a_plain_function_is_awaited(run_agent: "RunAgent") -> None:
    async def solve(task: Any) -> float:
        emit_message("in the loop")
        await asyncio.sleep(0)
        return 0.5

    @functools.wraps(solve)
    def decorated(*args: Any, **kwargs: Any) -> Any:
        return solve(*args, **kwargs)

    class Solver(LitAgent[Any]):
        async def rollout(self, task: Any, resources: NamedResources, rollout: Rollout) -> float:
            return await solve(task)

    for agent in (rollout(decorated), rollout(lambda task: solve(task)), Solver()):
        ran = await run_agent(agent)
        assert ran.rollout.status == "succeeded"
        assert ran.reward == 0.5
        assert len(ran.spans) == 2


async def test_thread_of_a_sync_agent_sees_the_context_variables_of_the_caller(run_agent: "RunAgent") -> None:
    tenant = ContextVar("tenant", default="nobody")

    @rollout
    def agent(task: Any) -> None:
        emit_message(f"{tenant.get()} {threading.current_thread().daemon}")
        tenant.set("agent")

    tenant.set("caller")
    ran = await run_agent(agent)

    assert ran.spans[0].attributes["agentlightning.message.body"] == "caller True"
    assert tenant.get() == "caller"


async def test_a_failure_tells_the_line_of_the_users_code(run_agent: "RunAgent") -> None:
    @rollout
    async def agent(task: Any) -> float:
        return float(json.loads("{"))

    ran = await run_agent(agent)
    failure = (ran.attempt.metadata or {})["failure"]
    line = inspect.unwrap(agent).__code__.co_firstlineno + 2  # type: ignore[arg-type]
    assert failure["where"].endswith(f"test_failures.py:{line} in agent")
