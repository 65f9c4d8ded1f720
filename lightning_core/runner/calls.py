"""Call an agent or a grader, and get away from it when its time is over."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from lightning_core.adapter import genai
from lightning_core.adapter.calls import has_failed
from lightning_core.concurrency import contained, in_daemon_thread
from lightning_core.errors import AgentError, AgentTimeout, AttemptLimitReached, BudgetExhausted, Fault
from lightning_core.model_proxy import flush_calls
from lightning_core.runner.clients import find_no_answer
from lightning_core.runner.outcome import Outcome
from lightning_core.store import LightningStore
from lightning_core.types import Attempt, AttemptedRollout, NamedResources, ProxyLLM, Span

BUDGET_PAUSE_SECONDS = 1.0
"""How long a runner waits after such a call. Without this, rollouts would be claimed and refused as fast as it goes
until all have failed; a separate process may count the budget, and report its end later."""


def of_attempt(resources: NamedResources, attempt: Attempt, key: str | None) -> NamedResources:
    """Return resources as one attempt gets them: what is behind a proxy has its URL, and is opened with its key.

    Args:
        resources: Stay as they are.
        attempt: The attempt.
        key: The attempt's; None where there is none.
    """
    return {
        name: resource.model_copy(
            update={
                "endpoint": resource.get_base_url(attempt.rollout_id, attempt.attempt_id),
                "api_key": key if resource.api_key is None else resource.api_key,
            }
        )
        if isinstance(resource, ProxyLLM)
        else resource
        for name, resource in resources.items()
    }


async def take_in_calls(
    store: LightningStore, resources: NamedResources, rollout: AttemptedRollout, outcome: Outcome, *, end: bool
) -> None:
    """Wait until the store has the calls that an attempt made through proxies; its outcome has them then, too.

    Args:
        store: Where spans are.
        resources: The attempt's, with its key.
        rollout: The rollout with the attempt.
        outcome: How it went so far.
        end: Whether the attempt has ended, so that no further call of it is let through.

    Raises:
        Fault: When a proxy, or the store, is out of reach.
    """
    if not any(isinstance(resource, ProxyLLM) for resource in resources.values()):
        return
    await flush_calls(resources.values(), rollout, end=end)
    outcome.spans = list(await store.query_spans(rollout.rollout_id, rollout.attempt.attempt_id))
    refused = {span.attributes.get(genai.ERROR_TYPE): span.status.description for span in outcome.spans}
    if genai.BUDGET_EXHAUSTED in refused:
        # Neither what it returned nor what it raised says anything of the agent.
        outcome.end_with(BudgetExhausted(refused[genai.BUDGET_EXHAUSTED] or "the run's budget is used up"))
        outcome.is_fault = True
    elif outcome.status != "failed" or outcome.was_stopped:
        return
    elif genai.ATTEMPT_LIMIT in refused:
        reached = AttemptLimitReached(refused[genai.ATTEMPT_LIMIT] or "the attempt has reached a limit of its calls")
        reached.__cause__ = outcome.error  # which has the place in the agent
        outcome.end_with(reached)
    elif (broken := _without_answer(outcome.spans)) is not None:
        # An agent that bears it, and fails at something else later, has failed.
        fault = Fault(f"its model gave no answer: {broken.status.description}", retry_after=0.0)
        if find_no_answer(outcome.error) is not None:  # a client's, which has how long to wait
            fault.retry_after, fault.__cause__ = None, outcome.error
        outcome.end_with(fault)


def _without_answer(spans: Sequence[Span]) -> Span | None:
    """Return the last call, if the proxy got no answer to it; None where it did, or there is none."""
    calls = [span for span in spans if span.attributes.get(genai.OPERATION_NAME) in genai.INFERENCE_OPERATIONS]
    for span in sorted(calls, key=lambda span: span.sequence_id, reverse=True):
        if span.attributes.get(genai.ERROR_TYPE) in genai.BACKEND_FAILED:
            return span
        if not has_failed(span):  # one that has may be the agent's own record of the same call
            return None
    return None


CANCEL_GRACE_SECONDS = 1.0
"""How long a cancelled agent may take to clean up before it is abandoned."""


class Limits(NamedTuple):
    """When a call is ended that does not end by itself. Several calls may share them."""

    timeout_seconds: float | None = None
    """The time that they have together, for messages; None for no limit."""
    deadline: float | None = None
    """The same in the time of the event loop."""
    stopped: "asyncio.Future[Exception] | None" = None
    """Ends them at once, with what is raised then."""

    @classmethod
    def from_now(
        cls, timeout_seconds: float | None = None, stopped: "asyncio.Future[Exception] | None" = None
    ) -> "Limits":
        """Return limits whose time begins now."""
        now = asyncio.get_running_loop().time()
        return cls(timeout_seconds, None if timeout_seconds is None else now + timeout_seconds, stopped)

    async def wait(self, call: "asyncio.Future[Any]", who: str) -> Exception | None:
        """Wait for a call; return what has ended it before its end, if anything has."""
        seconds = None if self.deadline is None else max(0.0, self.deadline - asyncio.get_running_loop().time())
        futures = (call,) if self.stopped is None else (call, self.stopped)
        await asyncio.wait(futures, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if call.done():
            return None
        if self.stopped is not None and self.stopped.done():
            return self.stopped.result()
        assert self.timeout_seconds is not None
        return AgentTimeout(self.timeout_seconds, who)


async def call_agent(
    function: Callable[[], Any],
    *,
    is_async: bool,
    limits: Limits,
    on_abandoned: Callable[[], None] = lambda: None,
    who: str = "agent",
) -> Any:
    """Call an agent's method, or a grader, and return what it returns.

    A coroutine runs as a task of this loop. A plain function runs in a daemon thread of its own, with this context's
    variables; when it returns an awaitable, that is awaited as a task. At its limits, or when the caller is
    cancelled, a task is cancelled and a thread is abandoned.

    Args:
        function: The method with its arguments.
        is_async: Whether it returns a coroutine.
        limits: When to end it.
        on_abandoned: Called when it still runs while this returns: a thread, which cannot be stopped, or a task that
            did not let itself be cancelled.
        who: What it is, in messages.

    Raises:
        AgentTimeout: When its time was over.
        AgentError: When it tried to end the process, or cancelled itself.
        Exception: What it raised, or what `limits` stopped it with.
    """

    if limits.stopped is not None and limits.stopped.done():
        raise limits.stopped.result()

    async def outcome(call: "asyncio.Future[Any]") -> Any:
        try:
            ended_by = await limits.wait(call, who)
        except asyncio.CancelledError:
            await _stop(call, on_abandoned)
            raise
        if ended_by is not None:
            await _stop(call, on_abandoned)
            raise ended_by
        if call.cancelled():
            raise AgentError(f"the {who}'s task was cancelled, but not by its runner")
        error = call.exception()
        if error is not None and not isinstance(error, Exception):
            raise contained(error, who) from error
        return call.result()

    if is_async:
        return await outcome(asyncio.ensure_future(_awaited(function, who)))
    result = await outcome(in_daemon_thread(function, name=who))
    if inspect.isawaitable(result):  # a plain function around a coroutine function
        return await outcome(asyncio.ensure_future(_awaited(lambda: result, who)))
    return result


async def _awaited(function: Callable[[], Awaitable[Any]], who: str) -> Any:
    """Await the call; a SystemExit would otherwise end the loop with all the other rollouts.

    A KeyboardInterrupt goes on: here it is a second Ctrl-C, on an agent that blocks the loop.
    """
    try:
        return await function()
    except SystemExit as exc:
        raise contained(exc, who) from exc


async def _stop(call: "asyncio.Future[Any]", on_abandoned: Callable[[], None]) -> None:
    """Cancel a call, and wait shortly for one that can be stopped."""
    if call.done():
        _ignore(call)
        return
    is_task = isinstance(call, asyncio.Task)
    call.cancel()
    try:
        if is_task:
            call.add_done_callback(_ignore)
            stopping = asyncio.ensure_future(asyncio.wait((call,), timeout=CANCEL_GRACE_SECONDS))
            try:
                await asyncio.shield(stopping)
            except asyncio.CancelledError:  # the run ends meanwhile, as this was its last rollout
                await stopping
                raise
    finally:
        if not is_task or not call.done():
            on_abandoned()


def _ignore(call: "asyncio.Future[Any]") -> None:
    """Discard the exception of a call that was being stopped."""
    if not call.cancelled():
        call.exception()
