"""Call the agent, and get away from it when its time is over."""

import asyncio
import contextvars
import inspect
import threading
import traceback
from collections.abc import Awaitable, Callable
from typing import Any

from lightning_core.errors import AgentError

CANCEL_GRACE_SECONDS = 1.0
"""How long a cancelled agent may take to clean up before it is abandoned."""


class AgentTimeout(AgentError, TimeoutError):
    """The agent ran out of its time."""

    def __init__(self, timeout_seconds: float) -> None:
        super().__init__(f"the agent ran longer than {timeout_seconds:g} s")


async def call_agent(
    function: Callable[[], Any],
    *,
    is_async: bool,
    timeout_seconds: float | None,
    on_abandoned: Callable[[], None] = lambda: None,
) -> Any:
    """Call an agent's method and return what it returns.

    A coroutine runs as a task of this loop. A plain function runs in a daemon thread of its own, with this context's
    variables; when it returns an awaitable, that is awaited as a task. When the time is over, or the caller is
    cancelled, a task is cancelled and a thread is abandoned.

    Args:
        function: The method with its arguments.
        is_async: Whether it returns a coroutine.
        timeout_seconds: Its time, in seconds; None for no limit.
        on_abandoned: Called when it still runs while this returns: a thread, which cannot be stopped, or a task that
            did not let itself be cancelled.

    Raises:
        AgentTimeout: When its time was over.
        AgentError: When it tried to end the process, or cancelled itself.
        Exception: What it raised.
    """
    loop = asyncio.get_running_loop()
    deadline = None if timeout_seconds is None else loop.time() + timeout_seconds

    async def outcome(call: "asyncio.Future[Any]") -> Any:
        try:
            await asyncio.wait((call,), timeout=None if deadline is None else max(0.0, deadline - loop.time()))
        except asyncio.CancelledError:
            await _stop(call, on_abandoned)
            raise
        if not call.done():
            assert timeout_seconds is not None
            await _stop(call, on_abandoned)
            raise AgentTimeout(timeout_seconds)
        if call.cancelled():
            raise AgentError("the agent's task was cancelled, but not by its runner")
        error = call.exception()
        if error is not None and not isinstance(error, Exception):
            raise _contained(error, "agent") from error
        return call.result()

    if is_async:
        return await outcome(asyncio.ensure_future(_awaited(function)))
    result = await outcome(in_daemon_thread(function, name="agent"))
    if inspect.isawaitable(result):  # a plain function around a coroutine function
        return await outcome(asyncio.ensure_future(_awaited(lambda: result)))
    return result


def in_daemon_thread(function: Callable[[], Any], *, name: str) -> "asyncio.Future[Any]":
    """Run a function in a new daemon thread, with the context variables of the caller.

    Cancelling the future abandons the thread: it goes on, and what it returns or raises is ignored. The process does
    not wait for it at its end.

    Returns:
        A future of this loop with its result.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()
    context = contextvars.copy_context()

    def settle(result: Any, error: Exception | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)

    def run() -> None:
        result: Any = None
        error: Exception | None = None
        try:
            result = context.run(function)
        except StopIteration as exc:
            error = _contained(exc, name)  # no future can hold it
        except Exception as exc:
            error = exc
        except BaseException as exc:
            error = _contained(exc, name)
        try:
            loop.call_soon_threadsafe(settle, result, error)
        except RuntimeError:
            return  # the loop has ended, and nobody waits for this any more

    threading.Thread(target=run, name=name, daemon=True).start()
    return future


async def _awaited(function: Callable[[], Awaitable[Any]]) -> Any:
    """Await the agent; a SystemExit would otherwise end the loop with all the other rollouts."""
    try:
        return await function()
    except (SystemExit, KeyboardInterrupt) as exc:
        raise _contained(exc, "agent") from exc


def _contained(error: BaseException, name: str) -> AgentError:
    """Return an error that stops nobody but the call that raised the given one."""
    contained = AgentError(f"the {name} raised {traceback.format_exception_only(error)[-1].strip()}")
    contained.__cause__ = error
    return contained


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
            await asyncio.wait((call,), timeout=CANCEL_GRACE_SECONDS)
    finally:
        if not is_task or not call.done():
            on_abandoned()


def _ignore(call: "asyncio.Future[Any]") -> None:
    """Take note of what a call raised while it was being stopped: it interests nobody."""
    if not call.cancelled():
        call.exception()
