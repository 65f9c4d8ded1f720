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
from lightning_core.runner import LitAgentRunner
from lightning_core.store import InMemoryLightningStore
from lightning_core.tracer import OtelTracer
from lightning_core.types import LLM, NamedResources, PromptTemplate, Rollout

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


async def test_error_without_a_text_is_told_by_its_type(make_agent: "MakeAgent", run_agent: "RunAgent") -> None:
    ran = await run_agent(make_agent(raising(ValueError())))

    assert ran.failure == {"type": "ValueError", "message": "ValueError"}


async def test_error_whose_text_no_store_can_keep_fails_only_its_attempt(
    make_agent: "MakeAgent", run_agent: "RunAgent"
) -> None:
    ran = await run_agent(make_agent(raising(ValueError("no file \udcff"))))

    assert ran.failure == {"type": "ValueError", "message": "no file \ufffd"}
    (exception,) = ran.spans
    assert exception.attributes["exception.message"] == "no file \ufffd"
    assert exception.attributes["exception.stacktrace"].encode().endswith("no file \ufffd\n".encode())


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


async def test_error_whose_text_cannot_be_had_fails_only_its_attempt(
    make_agent: "MakeAgent", run_agent: "RunAgent"
) -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    ran = await run_agent(make_agent(raising(Mute())))

    assert ran.failure == {"type": "Mute", "message": "<exception str() failed>"}


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


async def test_cancelled_error_of_an_agent_is_its_failure(make_agent: "MakeAgent", run_agent: "RunAgent") -> None:
    ran = await run_agent(make_agent(raising(asyncio.CancelledError())))

    assert ran.attempt.status == "failed"
    assert ran.failure["type"] == "AgentError"
    assert "ancelled" in ran.failure["message"]


async def test_agent_that_cancels_its_own_task_fails_only_its_attempt(run_agent: "RunAgent") -> None:
    @rollout
    async def agent(task: Any) -> None:
        current = asyncio.current_task()
        assert current is not None
        current.cancel()
        await asyncio.sleep(0)

    ran = await run_agent(agent)

    assert ran.failure == {"type": "AgentError", "message": "the agent's task was cancelled, but not by its runner"}


async def test_exception_group_is_a_failure_like_any_other(run_agent: "RunAgent") -> None:
    @rollout
    async def agent(task: Any) -> None:
        async def tool() -> None:
            raise ValueError("bad tool")

        async with asyncio.TaskGroup() as group:
            group.create_task(tool())

    ran = await run_agent(agent)

    assert ran.failure["type"] == "ExceptionGroup"
    assert "bad tool" in ran.spans[0].attributes["exception.stacktrace"]


async def test_failed_agent_does_not_stop_the_next_rollout(
    store: InMemoryLightningStore, make_agent: "MakeAgent"
) -> None:
    errors = iter([ValueError("first"), SystemExit("second")])

    def agent() -> float:
        for error in errors:
            raise error
        return 1.0

    queued = [await store.enqueue_rollout(number) for number in range(3)]
    runner = LitAgentRunner(OtelTracer(), max_rollouts=3)
    with runner.run_context(agent=make_agent(agent), store=store):
        await runner.iter()

    ended = await store.wait_for_rollouts(rollout_ids=[each.rollout_id for each in queued], timeout=0)
    assert [each.status for each in ended] == ["failed", "failed", "succeeded"]


async def test_agent_that_lacks_a_resource_fails_with_its_name(run_agent: "RunAgent") -> None:
    @rollout
    def agent(task: Any, llm: LLM) -> None: ...

    ran = await run_agent(agent)

    assert ran.failure["type"] == "MissingResource"
    assert "needs a resource of type LLM, but has: none" in ran.failure["message"]


async def test_agent_is_given_the_resources_of_its_rollout(
    store: InMemoryLightningStore, run_agent: "RunAgent"
) -> None:
    older = await store.add_resources({"prompt": PromptTemplate(template="older")})
    await store.add_resources({"prompt": PromptTemplate(template="newer")})
    seen = []

    @rollout
    def agent(task: Any, prompt_template: PromptTemplate, rollout: Rollout) -> None:
        seen.append((prompt_template.template, rollout.input))

    await run_agent(agent, "a", resources_id=older.resources_id)
    await run_agent(agent, "b")

    assert seen == [("older", "a"), ("newer", "b")]


async def test_mode_chooses_the_variant(run_agent: "RunAgent") -> None:
    class Solver(LitAgent[Any]):
        def training_rollout(self, task: Any, resources: NamedResources, rollout: Rollout) -> float:
            return 1.0

        def validation_rollout(self, task: Any, resources: NamedResources, rollout: Rollout) -> float:
            return 2.0

    assert [(await run_agent(Solver(), mode=mode)).reward for mode in ("train", "val", "test", None)] == [1, 2, 2, 2]


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


async def test_sync_agent_does_not_block_the_loop(store: InMemoryLightningStore) -> None:
    """Each of two sync agents waits for the other one."""
    meeting = threading.Barrier(2, timeout=20)

    @rollout
    def agent(task: Any) -> float:
        meeting.wait()
        return 1.0

    queued = [await store.enqueue_rollout(number) for number in range(2)]
    runners = [LitAgentRunner(OtelTracer(), max_rollouts=1) for _ in range(2)]

    async def run(worker_id: int) -> None:
        with runners[worker_id].run_context(agent=agent, store=store, worker_id=worker_id):
            await runners[worker_id].iter()

    await asyncio.gather(run(0), run(1))

    ended = await store.wait_for_rollouts(rollout_ids=[each.rollout_id for each in queued], timeout=0)
    assert [each.status for each in ended] == ["succeeded", "succeeded"]


async def test_a_failure_tells_the_line_of_the_users_code(run_agent: "RunAgent") -> None:
    @rollout
    async def agent(task: Any) -> float:
        return float(json.loads("{"))

    ran = await run_agent(agent)
    failure = (ran.attempt.metadata or {})["failure"]
    line = inspect.unwrap(agent).__code__.co_firstlineno + 2  # type: ignore[arg-type]
    assert failure["where"].endswith(f"test_failures.py:{line} in agent")
