"""The event loop of a run that plain code starts, and the way out of it."""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from lightning_core.runs.daemon_executor import DaemonExecutor

logger = logging.getLogger(__name__)

STOP_SECONDS = 0.2
"""How long tasks that are left over may take to end once they are cancelled."""


@contextmanager
def event_loop() -> Iterator[asyncio.Runner]:
    """Give a new event loop to a `with` block, and close it at the end, whatever still runs in it.

    Tasks that are left are cancelled. One that does not let itself be cancelled is logged and never runs again. What
    hangs in `asyncio.to_thread` goes on in its thread, which keeps the process from nothing.
    """
    runner = asyncio.Runner(loop_factory=_new_loop)
    loop = runner.get_loop()
    try:
        yield runner
    finally:
        # Not Runner.close(): it waits without a limit for tasks that refuse to end, and for threads.
        try:
            runner.run(_stop_what_is_left())
        finally:
            loop.close()


def _new_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    loop.set_default_executor(DaemonExecutor())
    return loop


async def _stop_what_is_left() -> None:
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await _wait_shortly(left)
    generators = asyncio.create_task(asyncio.get_running_loop().shutdown_asyncgens(), name="async generators")
    await _wait_shortly({generators})


async def _wait_shortly(tasks: "set[asyncio.Task[Any]]") -> None:
    if not tasks:
        return
    ended, stuck = await asyncio.wait(tasks, timeout=STOP_SECONDS)
    for task in ended:
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.warning("lightning.task_ended_badly task=%s", task.get_name(), exc_info=error)
    for task in stuck:
        logger.warning("lightning.task_abandoned task=%s; it does not let itself be cancelled", task.get_name())
