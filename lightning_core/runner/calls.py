"""Call the agent, and get away from it when its time is over."""

import asyncio
import contextvars
import threading
from collections.abc import Callable
from typing import Any

from lightning_core.errors import AgentError

CANCEL_GRACE_SECONDS = 1.0
"""How long a cancelled agent may take to clean up before it is abandoned."""


class AgentTimeout(AgentError, TimeoutError):
    """The agent ran out of its time."""

    def __init__(self, timeout_seconds: float, *, abandoned: bool) -> None:
        super().__init__(f"the agent ran longer than {timeout_seconds:g} s")
        self.abandoned = abandoned
        """Whether it still runs: a thread, which cannot be stopped, or a task that did not let itself be cancelled."""


async def call_agent(function: Callable[[], Any], *, is_async: bool, timeout_seconds: float | None) -> Any:
    """Call an agent's method and return what it returns.

    A coroutine runs as a task of this loop, and is cancelled when its time is over. A plain function runs in a daemon
    thread of its own, with this context's variables, and is abandoned.

    Args:
        function: The method with its arguments.
        is_async: Whether it returns a coroutine.
        timeout_seconds: Its time, in seconds; None for no limit.

    Raises:
        AgentTimeout: When its time was over.
        AgentError: When it tried to end the process, or cancelled itself.
        Exception: What it raised.
    """
    call: asyncio.Future[Any] = (
        asyncio.ensure_future(_exit_is_an_error(function)) if is_async else in_daemon_thread(function, name="agent")
    )
    try:
        await asyncio.wait((call,), timeout=timeout_seconds)
    except asyncio.CancelledError:
        await _stop(call)
        raise
    if not call.done():
        abandoned = not is_async or not await _stop(call)
        assert timeout_seconds is not None
        raise AgentTimeout(timeout_seconds, abandoned=abandoned)
    if call.cancelled():
        raise AgentError("the agent's task was cancelled, but not by its runner")
    return call.result()


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

    def settle(result: Any, error: BaseException | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)

    def run() -> None:
        result, error = None, None
        try:
            result = context.run(function)
        except Exception as exc:
            error = exc
        except BaseException as exc:
            error = AgentError(f"{name} tried to end its thread: {type(exc).__name__}: {exc}")
            error.__cause__ = exc
        try:
            loop.call_soon_threadsafe(settle, result, error)
        except RuntimeError:
            return  # the loop has ended, and nobody waits for this any more

    threading.Thread(target=run, name=name, daemon=True).start()
    return future


async def _exit_is_an_error(function: Callable[[], Any]) -> Any:
    """Await the agent; a SystemExit would otherwise end the loop with all the other rollouts."""
    try:
        return await function()
    except (SystemExit, KeyboardInterrupt) as exc:
        raise AgentError(f"the agent tried to end the process: {type(exc).__name__}: {exc}") from exc


async def _stop(call: "asyncio.Future[Any]") -> bool:
    """Cancel a call and wait for it shortly; return whether it has ended."""
    call.cancel()
    await asyncio.wait((call,), timeout=CANCEL_GRACE_SECONDS)
    if call.done() and not call.cancelled():
        call.exception()  # what it raised while it was being stopped interests nobody
    return call.done()
