"""Strategies that were written for agentlightning 0.3: `execute` is no coroutine, and each side may be told to stop."""

import asyncio
import inspect
import multiprocessing
import os
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from lightning_core.concurrency import in_daemon_thread
from lightning_core.errors import ExecutionError
from lightning_core.execution.base import ExecutionStrategy
from lightning_core.execution.local import end_tasks, signal_run_end
from lightning_core.store import LightningStore

_Side = Callable[..., Coroutine[Any, Any, None]]


async def execute(strategy: ExecutionStrategy, algorithm: _Side, runner: _Side, store: LightningStore) -> None:
    """Run both sides of a run with a strategy whose `execute` is not a coroutine function: it runs in a thread.

    What it calls runs in the calling event loop all the same, or, in a process
    that it has forked, there.

    Args:
        strategy: Calls the algorithm with the store, and the runner with the store and a number; after that may come
            an event, which asks it to stop.
        algorithm: The algorithm's side.
        runner: The runners' side.
        store: What both sides share.

    Raises:
        ExecutionError: When a plain `execute` called neither side, and left a coroutine that it inherited unawaited.
        Exception: What the strategy raised.
    """
    sides = _Sides()
    plain = partial(strategy.execute, sides.called_here(algorithm), sides.called_here(runner), store)
    await store.begin_run()
    try:
        pending = await in_daemon_thread(plain, name="strategy")
        if inspect.isawaitable(pending):
            await pending
        if not sides.begun.value and _has_coroutine(type(strategy)):
            raise ExecutionError(
                f"{type(strategy).__name__}.execute called neither the algorithm nor a runner; if it calls "
                "super().execute(...), return what that returns, which is a coroutine"
            )
    except BaseException as exc:
        await end_tasks(sides.tasks, raised=exc)
        await signal_run_end(store, raised=exc)
        raise
    await end_tasks(sides.tasks)
    await signal_run_end(store)


def _has_coroutine(strategy: type) -> bool:
    """Whether a class that this one extends has an `execute` that is to be awaited."""
    inherited = [vars(base).get("execute") for base in strategy.__mro__]
    return any(inspect.iscoroutinefunction(each) and each is not ExecutionStrategy.execute for each in inherited)


class _Sides:
    def __init__(self) -> None:
        self._process_id = os.getpid()
        self._loop = asyncio.get_running_loop()
        self.tasks: list[asyncio.Task[Any]] = []
        self.begun = multiprocessing.RawValue("b", 0)
        """Whether a side was called, here or in a process that was forked."""

    def called_here(self, side: _Side) -> _Side:
        """Return a side of the run that may be awaited in any event loop."""

        async def begin(*arguments: Any) -> None:
            task = asyncio.ensure_future(side(*arguments))
            self.tasks.append(task)
            await task

        async def call(*arguments: Any) -> None:
            self.begun.value = 1
            if os.getpid() != self._process_id:
                await side(*arguments)
            else:
                await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(begin(*arguments), self._loop))

        return call
