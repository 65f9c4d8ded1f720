"""A runner's signs of life, sent while it works, whatever its agent does to the event loop."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from lightning_core.runner.assignment import Assignment
from lightning_core.runner.calls import in_daemon_thread
from lightning_core.runner.machine import system_snapshot
from lightning_core.store import LightningStore
from lightning_core.tracer import Trace

logger = logging.getLogger(__name__)

FIRST_SECONDS = 1.0
"""How long a runner waits for its first heartbeat, from which on its claims are leases."""

LAST_SECONDS = 0.5
"""How long the last one, and one that is under way, may hold up the end of a runner: somebody waits for that."""


class Heartbeats:
    """The heartbeats of one worker.

    Each says how the machine does, and how many agents were abandoned. It renews the leases of the attempts that the
    worker executes, and looks whether the store still wants them.

    Args:
        worker_id: The worker.
        store: Where to send them.
        interval_seconds: The time between two of them.
        in_thread: Whether to send them from a thread, where the store allows it.
    """

    def __init__(self, worker_id: str, store: LightningStore, *, interval_seconds: float, in_thread: bool) -> None:
        self.worker_id = worker_id
        self.assignments: dict[str, Assignment] = {}
        """What the worker executes, by attempt."""
        self.abandoned: list[Trace] = []
        """The traces of agents that could not be stopped."""
        self._store = store
        self._interval_seconds = interval_seconds
        self._beating = _in_thread if in_thread and store.capabilities.get("thread_safe") else _in_loop
        self._blocks = 0
        self._running = AsyncExitStack()

    @asynccontextmanager
    async def beating(self) -> AsyncIterator[None]:
        """Send heartbeats during the block; several blocks at the same time share them."""
        self._blocks += 1
        try:
            if self._blocks == 1:
                # Before the first claim: only a worker that is known to send heartbeats has a lease on it.
                await self._beat(self._counts(), FIRST_SECONDS)
                name = f"heartbeat of {self.worker_id}"
                await self._running.enter_async_context(self._beating(self._beat_on, name))
            yield
        finally:
            self._blocks -= 1
            if self._blocks == 0:
                await self._running.aclose()
                if self.abandoned:
                    await self._beat(self._stats(), LAST_SECONDS)

    async def _beat_on(self) -> None:
        while True:
            await self._beat(self._stats(), self._interval_seconds)
            await asyncio.sleep(self._interval_seconds)

    async def _beat(self, stats: dict[str, Any], timeout_seconds: float) -> None:
        try:
            async with asyncio.timeout(timeout_seconds):
                worker = await self._store.update_worker(self.worker_id, stats)
                for assignment in tuple(self.assignments.values()):
                    # The store has renewed the lease of the one that the worker's record names.
                    is_renewed = assignment.attempt_id == worker.current_attempt_id
                    await assignment.look(alive_at=None if is_renewed else worker.last_heartbeat_time)
        except Exception as exc:
            # Work goes on: if the store is gone for good, the next claim or report says so.
            logger.warning("lightning.heartbeat_failed worker_id=%s", self.worker_id, exc_info=exc)

    def _stats(self) -> dict[str, Any]:
        return {**system_snapshot(), **self._counts()}

    def _counts(self) -> dict[str, int]:
        return {
            "abandoned_agents": len(self.abandoned),
            "dropped_spans": sum(trace.dropped for trace in self.abandoned),
        }


@asynccontextmanager
async def _in_loop(beat_on: Callable[[], Awaitable[None]], name: str) -> AsyncIterator[None]:
    task = asyncio.ensure_future(beat_on())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait((task,))


@asynccontextmanager
async def _in_thread(beat_on: Callable[[], Awaitable[None]], name: str) -> AsyncIterator[None]:
    """Beat in a thread with an event loop of its own: an agent that blocks the runner's is slow, not dead."""
    loop = asyncio.new_event_loop()
    task = asyncio.ensure_future(beat_on(), loop=loop)

    def run() -> None:
        try:
            loop.run_until_complete(asyncio.wait((task,)))
        finally:
            loop.close()

    thread = in_daemon_thread(run, name=name)
    try:
        yield
    finally:
        if not thread.done():
            loop.call_soon_threadsafe(task.cancel)
            await asyncio.wait((thread,), timeout=LAST_SECONDS)
