"""A runner's signs of life, sent while it works, whatever its agent does to the event loop."""

import asyncio
import inspect
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import Any

from lightning_core.concurrency import EventLoopThread
from lightning_core.errors import AgentTimeout, AttemptStopped, StoreError, StoreUnavailable
from lightning_core.lifecycle import ACTIVE_ATTEMPT, ENDED, QUEUED
from lightning_core.runner.outcome import place_of
from lightning_core.store import LightningStore
from lightning_core.tracer import Trace
from lightning_core.types import AttemptedRollout, Rollout

logger = logging.getLogger(__name__)

LISTEN_AFTER_SECONDS = 0.2
"""When to begin to wait for an attempt's end in the store: quick ones are over by then, and cost nothing."""


class Assignment:
    """An attempt that is being executed here.

    Made in the event loop of its runner; `look` may be called in any other.

    Args:
        rollout: The rollout, as it was claimed.
        store: Where it was claimed.
    """

    def __init__(self, rollout: AttemptedRollout, store: LightningStore) -> None:
        self.rollout_id = rollout.rollout_id
        self.attempt_id = rollout.attempt.attempt_id
        self._rollout: Rollout = rollout
        self._store = store
        self._loop = asyncio.get_running_loop()
        self.stopped: asyncio.Future[Exception] = self._loop.create_future()
        """Done when the store does not want the attempt any more; the result says why."""

    @property
    def unresponsive_seconds(self) -> float | None:
        """How long the attempt may be silent, as the rollout's config was seen last; None for no limit."""
        return self._rollout.config.unresponsive_seconds

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        """Let the store tell, during the block, when the rollout is ended by another caller, or deleted.

        The store notifies of a rollout's end only. That an attempt is given up while its rollout goes on (a lost
        lease, a rollout that was queued again) comes out with the next heartbeat, by `look`.
        """
        task: asyncio.Task[None] | None = None

        def listen() -> None:
            nonlocal task
            task = self._loop.create_task(self._listen(), name=f"end of {self.rollout_id}")

        timer = self._loop.call_later(LISTEN_AFTER_SECONDS, listen)
        try:
            yield
        finally:
            timer.cancel()
            if task is not None:
                task.cancel()
                await asyncio.wait((task,))

    async def look(self) -> None:
        """Look whether the store still wants the attempt."""
        rollout = await self._store.get_rollout_by_id(self.rollout_id)
        if rollout is None or self._is_given_up(rollout):
            self._stop(rollout)
            return
        self._rollout = rollout

    async def _listen(self) -> None:
        try:
            ended = await self._store.wait_for_rollouts(rollout_ids=[self.rollout_id])
        # Heartbeats look, too; and if the store is gone for good, the report of the outcome says so.
        except StoreUnavailable as exc:
            logger.info("lightning.rollout_not_watched rollout_id=%s: %s", self.rollout_id, exc)
        except Exception as exc:
            logger.warning("lightning.rollout_not_watched rollout_id=%s", self.rollout_id, exc_info=exc)
        else:
            self._stop(ended[0] if ended else None)  # it was deleted

    def _is_given_up(self, rollout: Rollout) -> bool:
        """Whether the attempt cannot change the rollout's outcome any more. An unresponsive one may be revived."""
        attempt = rollout.attempt if isinstance(rollout, AttemptedRollout) else None
        if rollout.status in ENDED or attempt is None or attempt.attempt_id != self.attempt_id:
            return True
        was_queued_again = rollout.status in QUEUED and attempt.status in ACTIVE_ATTEMPT
        return was_queued_again or "fault" in (attempt.metadata or {})

    def _stop(self, rollout: Rollout | None) -> None:
        with suppress(RuntimeError):  # a closed loop runs nothing
            self._loop.call_soon_threadsafe(self._settle, self._reason(rollout))

    def _settle(self, reason: Exception) -> None:
        if not self.stopped.done():
            self.stopped.set_result(reason)

    def _reason(self, rollout: Rollout | None) -> Exception:
        if rollout is None:
            return AttemptStopped(f"rollout {self.rollout_id} was deleted")
        if rollout.status == "cancelled":
            return AttemptStopped(f"rollout {self.rollout_id} was cancelled")
        attempt = rollout.attempt if isinstance(rollout, AttemptedRollout) else None
        limit = rollout.config.timeout_seconds
        if attempt is not None and attempt.attempt_id == self.attempt_id and attempt.status == "timeout" and limit:
            return AgentTimeout(limit)  # the store's clock was a little ahead
        return AttemptStopped(f"attempt {self.attempt_id} was given up; its rollout is {rollout.status!r} by now")


MAX_AGE_SECONDS = 1.0
"""How old a snapshot may be: the runners of a process that beat at the same time share one."""

_lock = threading.Lock()
_newest: tuple[float, dict[str, Any]] | None = None


def system_snapshot(include_gpu: bool = False) -> dict[str, Any]:
    """Return how this machine and this process do, under the names of agentlightning 0.3.

    Sizes are in GiB (`_gb`) or MiB (`_mb`), shares in percent (`_pct`); `cpu_usage_pct` is that since the snapshot
    before. Where psutil fails, `snapshot_error` says how.
    """
    global _newest
    with _lock:
        now = time.monotonic()
        if _newest is None or now - _newest[0] > MAX_AGE_SECONDS:
            _newest = (now, _measured())
        return dict(_newest[1])


def _measured() -> dict[str, Any]:
    import psutil  # type: ignore[import-untyped]  # late: it takes 20 ms

    names = {"host": socket.gethostname(), "process_id": os.getpid()}
    try:
        memory, process = psutil.virtual_memory(), psutil.Process()
        return {
            **names,
            "cpu_usage_pct": psutil.cpu_percent(),
            "mem_used_gb": round(memory.used / 2**30, 2),
            "mem_total_gb": round(memory.total / 2**30, 2),
            "mem_pct": memory.percent,
            "process_mem_mb": round(process.memory_info().rss / 2**20, 1),
            "process_threads": process.num_threads(),
        }
    except (psutil.Error, OSError) as exc:  # a machine that does not let itself be looked at
        return {**names, "snapshot_error": f"{type(exc).__name__}: {exc}"}


BLOCKED_SECONDS = 0.5
"""How long an agent may keep the event loop before that is worth a warning."""

END_SECONDS = 0.5
"""How long a heartbeat that is under way may hold up the end of its runner."""


class Pacemaker:
    """An event-loop thread that is there while it has users.

    One for the process, because sixty threads that start and end would hold up the event loop of their runners.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Begin anew, without the thread: in a forked process there is none."""
        self._lock = threading.Lock()
        self._users = 0
        self._thread: EventLoopThread | None = None
        self._watches = False
        self.attempts: set[str] = set()
        """Those that the workers of this process execute."""

    def acquire(self) -> EventLoopThread:
        """Return the thread. Each call needs one of `release`."""
        with self._lock:
            self._users += 1
            if self._thread is None:
                self._thread = EventLoopThread("heartbeats")
                self._watches = False
            return self._thread

    def release(self) -> EventLoopThread | None:
        """Undo one `acquire`; the last one tells the thread to end, and returns it."""
        with self._lock:
            self._users -= 1
            if self._users or self._thread is None:
                return None
            ending, self._thread = self._thread, None
        ending.stop()
        return ending

    @asynccontextmanager
    async def running(self, work: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
        """Run a coroutine function in the thread during the block; cancel it, and wait shortly for it, at the end."""
        thread, is_over = self.acquire(), asyncio.Event()
        ended = asyncio.wrap_future(thread.submit(_until(is_over, work)))
        if self._users > 1 and not self._watches:
            self._watches = True
            thread.submit(self._watch(asyncio.get_running_loop(), threading.get_ident()))
        try:
            yield
        finally:
            try:
                thread.loop.call_soon_threadsafe(is_over.set)
                await asyncio.wait((ended,), timeout=END_SECONDS)
            finally:
                ending = self.release()
                if ending is not None and ended.done():  # it has nothing left to do, and is gone in no time
                    ending.join(END_SECONDS)

    async def _watch(self, loop: asyncio.AbstractEventLoop, thread_id: int) -> None:
        """Warn once of a line of the user's that keeps the event loop of several workers from going on.

        What keeps it for twice `BLOCKED_SECONDS` is always found.
        """
        while not loop.is_closed():
            answered, asked = threading.Event(), time.monotonic()
            with suppress(RuntimeError):  # it was closed just now
                loop.call_soon_threadsafe(answered.set)
            await asyncio.sleep(BLOCKED_SECONDS)
            # If this thread is late, too, the whole process stood still.
            is_late = time.monotonic() - asked > 1.5 * BLOCKED_SECONDS
            if answered.is_set() or is_late or not self.attempts or (runners := self._users) < 2:
                continue
            if place := _place_in_coroutine(thread_id):
                logger.warning(
                    "lightning.event_loop_blocked at=%r: this has kept %d runners waiting for more than %g s. Await an "
                    "async client or asyncio.to_thread there, make the agent a plain def, or use strategy: processes",
                    place,
                    runners,
                    BLOCKED_SECONDS,
                )
                return


async def _until(is_over: asyncio.Event, work: Callable[[], Awaitable[None]]) -> None:
    async with _in_loop(work):
        await is_over.wait()


pacemaker = Pacemaker()
"""That of this process."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=pacemaker.forget)


FIRST_SECONDS = 1.0
"""How long a runner waits for its first heartbeat, from which on its claims are leases."""

LAST_SECONDS = 0.5
"""How long the last one may hold up the end of a runner."""

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
        interval_seconds: The longest time between two of them; 0 for none.
    """

    def __init__(self, worker_id: str, store: LightningStore, *, interval_seconds: float) -> None:
        self.worker_id = worker_id
        self._assignments: dict[str, Assignment] = {}
        self._hurry: Callable[[], object] | None = None  # lets `_beat_on` compute its pause anew
        self._abandoned_agents = 0
        self._dropped_spans = 0
        self._counting = threading.Lock()
        self._store = store
        self._interval_seconds = interval_seconds
        # From a thread: an agent that blocks the runner's event loop is slow, not dead.
        self._beating = pacemaker.running if store.capabilities.get("thread_safe") else _in_loop
        self._has_failed = False
        self._blocks = 0
        self._running = AsyncExitStack()

    @contextmanager
    def working_on(self, assignment: Assignment) -> Iterator[None]:
        """Keep the lease on an attempt during the block."""
        self._assignments[assignment.attempt_id] = assignment
        pacemaker.attempts.add(assignment.attempt_id)
        hurry = self._hurry
        if hurry is not None and assignment.unresponsive_seconds is not None:
            hurry()  # the pause that has begun may be too long for it
        try:
            yield
        finally:
            del self._assignments[assignment.attempt_id]
            pacemaker.attempts.discard(assignment.attempt_id)

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
            if self._blocks == 1 and self._interval_seconds > 0:
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
                if self._abandoned_agents and self._interval_seconds > 0:
                    await self._beat(LAST_SECONDS)

    def _pause_seconds(self) -> float:
        """The longest pause that keeps what is executed now, or claimed next."""
        unresponsive = (each.unresponsive_seconds for each in tuple(self._assignments.values()))
        limits = [limit for limit in (self._store.lease_seconds, *unresponsive) if limit is not None]
        return min([self._interval_seconds, *(max(each / BEATS_IN_A_LIMIT, SHORTEST_SECONDS) for each in limits)])

    async def _beat_on(self) -> None:
        loop, hurried = asyncio.get_running_loop(), asyncio.Event()
        hurry = self._hurry = partial(loop.call_soon_threadsafe, hurried.set)
        latest = loop.time()
        try:
            while True:
                hurried.clear()  # first: an assignment is added before it is set
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
        stats = {**system_snapshot(), "abandoned_agents": self._abandoned_agents, "dropped_spans": self._dropped_spans}
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


def _place_in_coroutine(thread_id: int) -> str:
    """Return where a thread is in the user's code, called by a coroutine; empty in an import and in a debugger."""
    place, frame = "", sys._current_frames().get(thread_id)
    while frame is not None and frame.f_globals.get("__name__") not in ("bdb", "importlib._bootstrap"):
        place = place or place_of(frame.f_code, frame.f_lineno)
        if place and frame.f_code.co_flags & (inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
            return place
        frame = frame.f_back
    return ""


@asynccontextmanager
async def _in_loop(beat_on: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    task = asyncio.ensure_future(beat_on())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait((task,))
