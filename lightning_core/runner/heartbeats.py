"""A runner's signs of life, sent while it works, whatever its agent does to the event loop."""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager

from lightning_core.runner.assignment import Assignment
from lightning_core.runner.machine import system_snapshot
from lightning_core.runner.pacemaker import pacemaker
from lightning_core.store import LightningStore
from lightning_core.tracer import Trace

logger = logging.getLogger(__name__)

FIRST_SECONDS = 1.0
"""How long a runner waits for its first heartbeat, from which on its claims are leases."""

LAST_SECONDS = 0.5
"""How long the last one may hold up the end of a runner: somebody waits for that."""


class Heartbeats:
    """The heartbeats of one worker.

    Each says how the machine does, and how many agents this worker has abandoned and how many of their spans were lost,
    from its beginning on. It renews the leases of the attempts that the worker executes, and looks whether the store
    still wants them.

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
        self._abandoned_agents = 0
        self._dropped_spans = 0
        self._counting = threading.Lock()
        self._store = store
        self._interval_seconds = interval_seconds
        # From a thread: an agent that blocks the runner's event loop is slow, not dead.
        self._beating = pacemaker.running if in_thread and store.capabilities.get("thread_safe") else _in_loop
        self._blocks = 0
        self._running = AsyncExitStack()

    def abandon(self, trace: Trace) -> None:
        """Count an agent that could not be stopped, and what it emits after the end of its trace."""
        with self._counting:
            self._abandoned_agents += 1
        trace.tell_losses(self._count_dropped)

    def _count_dropped(self, spans: int) -> None:
        with self._counting:
            self._dropped_spans += spans

    @asynccontextmanager
    async def beating(self) -> AsyncIterator[None]:
        """Send heartbeats during the block; several blocks at the same time share them."""
        self._blocks += 1
        try:
            if self._blocks == 1:
                # Before the first claim: only a worker that is known to send heartbeats has a lease on it.
                await self._beat(FIRST_SECONDS)
                await self._running.enter_async_context(self._beating(self._beat_on))
            yield
        finally:
            self._blocks -= 1
            if self._blocks == 0:
                running, self._running = self._running, AsyncExitStack()  # another block may begin meanwhile
                await running.aclose()
                if self._abandoned_agents:
                    await self._beat(LAST_SECONDS)

    async def _beat_on(self) -> None:
        while True:
            await asyncio.sleep(self._interval_seconds)
            await self._beat(self._interval_seconds)

    async def _beat(self, timeout_seconds: float) -> None:
        stats = {
            **system_snapshot(),
            "abandoned_agents": self._abandoned_agents,
            "dropped_spans": self._dropped_spans,
        }
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


@asynccontextmanager
async def _in_loop(beat_on: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    task = asyncio.ensure_future(beat_on())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait((task,))
