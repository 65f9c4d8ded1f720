"""A runner's signs of life, sent while it works, whatever its agent does to the event loop."""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial

from lightning_core.errors import StoreError
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

BEATS_IN_A_LIMIT = 3
"""How many heartbeats there are in the time after which silence ends an attempt: two may be late or get lost."""

SHORTEST_SECONDS = 0.01
"""The shortest time between two that a limit brings about."""


class Heartbeats:
    """The heartbeats of one worker.

    Each says how the machine does, and how many agents this worker has abandoned and how many of their spans were lost,
    from its beginning on. It renews the leases of the attempts that the worker executes, and looks whether the store
    still wants them.

    There are at least three in the store's lease, and in the `unresponsive_seconds` of what the worker executes,
    however long the interval is.

    Args:
        worker_id: The worker.
        store: Where to send them.
        interval_seconds: The longest time between two of them.
        in_thread: Whether to send them from a thread, where the store allows it.
    """

    def __init__(self, worker_id: str, store: LightningStore, *, interval_seconds: float, in_thread: bool) -> None:
        self.worker_id = worker_id
        self._assignments: dict[str, Assignment] = {}
        self._hurry: Callable[[], object] | None = None  # tells `_beat_on` to look anew how long it may pause
        self._abandoned_agents = 0
        self._dropped_spans = 0
        self._counting = threading.Lock()
        self._store = store
        self._interval_seconds = interval_seconds
        # From a thread: an agent that blocks the runner's event loop is slow, not dead.
        self._beating = pacemaker.running if in_thread and store.capabilities.get("thread_safe") else _in_loop
        self._has_failed = False
        self._blocks = 0
        self._running = AsyncExitStack()

    @contextmanager
    def working_on(self, assignment: Assignment) -> Iterator[None]:
        """Keep the lease on an attempt during the block."""
        self._assignments[assignment.attempt_id] = assignment
        limit, hurry = assignment.unresponsive_seconds, self._hurry
        if limit is not None and limit < self._interval_seconds * BEATS_IN_A_LIMIT and hurry is not None:
            hurry()  # the pause that has begun may be too long for it
        try:
            yield
        finally:
            del self._assignments[assignment.attempt_id]

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
                self._hurry = None
                await running.aclose()
                if self._abandoned_agents:
                    await self._beat(LAST_SECONDS)

    def _pause_seconds(self) -> float:
        """How long to wait after a heartbeat, by what is executed now."""
        limits = [self._store.lease_seconds, *(each.unresponsive_seconds for each in tuple(self._assignments.values()))]
        pauses = [max(limit / BEATS_IN_A_LIMIT, SHORTEST_SECONDS) for limit in limits if limit is not None]
        return min([self._interval_seconds, *pauses])

    async def _beat_on(self) -> None:
        loop, hurried = asyncio.get_running_loop(), asyncio.Event()
        hurry = self._hurry = partial(loop.call_soon_threadsafe, hurried.set)
        latest = loop.time()
        try:
            while True:
                hurried.clear()  # before looking what is executed: who begins something adds that first
                pause_seconds = self._pause_seconds()
                try:
                    async with asyncio.timeout_at(latest + pause_seconds):
                        await hurried.wait()
                except TimeoutError:
                    latest = loop.time()
                    await self._beat(pause_seconds)
        finally:
            if self._hurry is hurry:  # not that of another block, which began meanwhile
                self._hurry = None

    async def _beat(self, timeout_seconds: float) -> None:
        stats = {
            **system_snapshot(),
            "abandoned_agents": self._abandoned_agents,
            "dropped_spans": self._dropped_spans,
        }
        try:
            async with asyncio.timeout(timeout_seconds):
                assignments = tuple(self._assignments.values())
                attempts = [(each.rollout_id, each.attempt_id) for each in assignments]
                await self._store.update_worker(self.worker_id, stats, attempts=attempts)
                for assignment in assignments:
                    await assignment.look()
            self._has_failed = False
        # Work goes on: if the store is gone for good, the next claim or report says so.
        except (StoreError, TimeoutError) as exc:
            why = str(exc) or f"the store did not answer within {timeout_seconds:g} s"
            # Said once; the others until one gets through are the same failure.
            level, self._has_failed = logging.INFO if self._has_failed else logging.WARNING, True
            logger.log(level, "lightning.heartbeat_failed worker_id=%s: %s; its work goes on", self.worker_id, why)
        except Exception as exc:
            logger.warning("lightning.heartbeat_failed worker_id=%s", self.worker_id, exc_info=exc)


@asynccontextmanager
async def _in_loop(beat_on: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    task = asyncio.ensure_future(beat_on())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait((task,))
