"""An async context manager around a plain function."""

import asyncio
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from contextvars import Context, copy_context
from typing import Any, TypeVar

from lightning_core.errors import TracerError

ResultT = TypeVar("ResultT")

_MISSING = object()


def run_inline(
    manager: AbstractAsyncContextManager[Any], func: Callable[..., ResultT], *args: Any, **kwargs: Any
) -> ResultT:
    """Enter the manager, call the function, leave the manager; return what the function returned.

    An event loop runs for the manager only, so the function may start one of its own. Context variables that are set
    on the way stay set in the calling context, as they do in `async with`.

    Raises:
        TracerError: When an event loop runs in this thread already.
    """
    if _loop_is_running():
        raise TracerError(
            "trace_run was called where an event loop runs; await trace_run_async, or use `async with trace_context()`"
        )
    context = copy_context()
    try:
        with asyncio.Runner() as runner:
            runner.run(_enter(manager), context=context)
            try:
                result = context.run(func, *args, **kwargs)
            except BaseException:
                runner.run(_leave(manager, *sys.exc_info()), context=context)
                raise
            runner.run(_leave(manager, None, None, None), context=context)
            return result
    finally:
        _adopt(context)


def _loop_is_running() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


async def _enter(manager: AbstractAsyncContextManager[Any]) -> None:
    await manager.__aenter__()


async def _leave(manager: AbstractAsyncContextManager[Any], *error: Any) -> None:
    await manager.__aexit__(*error)


def _adopt(context: Context) -> None:
    """Set what was changed in a copy of the calling context in that context itself."""
    for variable, value in context.items():
        if variable.get(_MISSING) is not value:
            variable.set(value)
