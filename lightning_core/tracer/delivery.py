"""From a trace to the store, while the trace is recorded."""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import Context
from functools import partial
from typing import TYPE_CHECKING

from lightning_core.errors import TracerError
from lightning_core.tracer.trace import Trace

if TYPE_CHECKING:
    from lightning_core.store.base import LightningStore

logger = logging.getLogger(__name__)

LINGER_SECONDS = 0.01
"""How long a span may wait for others that go with it: one call of the store for many is much less work."""

_LAST_TRIES = 2
"""When a trace ends: one for what is under way, which may fail or be cancelled, and one for what that leaves."""


@asynccontextmanager
async def delivering(
    trace: Trace,
    store: "LightningStore",
    *,
    context: Context,
    timeout_seconds: float,
    cancelled_timeout_seconds: float,
) -> AsyncIterator[None]:
    """Send the spans of a trace to a store while the block runs, and the rest when it ends.

    The block closes the trace at its end. When this returns, the store has acknowledged every span; when it cannot
    be made to, this raises. An error of the block goes first: then the failed delivery is logged, and a note on the
    block's error tells of it.

    Args:
        trace: Nothing is recorded into it yet.
        store: Called in the event loop of the caller only, and never twice at once.
        context: The context variables that the store's methods see.
        timeout_seconds: How long to wait for the store when the block has ended.
        cancelled_timeout_seconds: The same for a block, or a wait, that was cancelled.

    Raises:
        TracerError: When the store did not answer in time.
        Exception: Whatever the store raised.
    """
    delivery = _Delivery(trace, store, context)
    trace.listen(delivery.wake, partial(delivery.finish, timeout_seconds))
    try:
        try:
            yield
        except Exception as exc:
            _tell_beside(exc, await delivery.finish(timeout_seconds), trace)
            raise
        failure = await delivery.finish(timeout_seconds)
        if failure is not None:
            raise failure
    except Exception:
        raise
    except BaseException as exc:
        # The block was cancelled, or the waiting after it.
        _tell_beside(exc, await delivery.finish(cancelled_timeout_seconds), trace)
        raise
    finally:
        await delivery.stop(cancelled_timeout_seconds)


def _tell_beside(error: BaseException, failure: Exception | None, trace: Trace) -> None:
    """Make a failed delivery known when another error is what goes on."""
    if failure is None:
        return
    lost = len(trace.undelivered())
    error.add_note(f"{lost} spans of this trace were not stored: {type(failure).__name__}: {failure}")
    logger.error(
        "lightning.spans_not_stored rollout_id=%s attempt_id=%s spans=%d",
        trace.rollout_id,
        trace.attempt_id,
        lost,
        exc_info=failure,
    )


class _Delivery:
    """Sends what has piled up with one call, and again until nothing is left.

    There is at most one task, which begins shortly after a span and ends when it has caught up. After a failure the
    next span starts another one.
    """

    def __init__(self, trace: Trace, store: "LightningStore", context: Context) -> None:
        self._trace = trace
        self._store = store
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._wake_up_is_due = False
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = False
        self._task: asyncio.Task[None] | None = None
        self._failure: Exception | None = None

    def wake(self) -> None:
        """Tell that there is something to send; from any thread."""
        if self._loop.is_closed():
            self._give_up()
        elif self._wake_up_is_due:
            return
        elif threading.get_ident() == self._loop_thread:
            self._on_wake_up()
        else:
            self._wake_up_is_due = True
            try:
                self._loop.call_soon_threadsafe(self._on_wake_up)
            except RuntimeError:
                self._give_up()

    async def finish(self, timeout_seconds: float) -> Exception | None:
        """Wait until all is stored; return what prevents it."""
        deadline = self._loop.time() + timeout_seconds
        for _ in range(_LAST_TRIES):
            if not self._trace.undelivered():
                return None
            task = self._send_soon()
            await asyncio.wait((task,), timeout=max(0.0, deadline - self._loop.time()))
        lost = len(self._trace.undelivered())
        if not lost:
            return None
        return self._failure or TracerError(
            f"the store did not acknowledge {lost} spans of attempt {self._trace.attempt_id!r} within "
            f"{timeout_seconds:g} s; see whether the store can be reached, or give the tracer a longer timeout"
        )

    async def stop(self, timeout_seconds: float) -> None:
        """Leave nothing running, and no reference from the trace to here: it outlives its delivery."""
        self._stopped = True
        self._trace.listen(None)
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait((self._task,), timeout=timeout_seconds)

    def _on_wake_up(self) -> None:
        self._wake_up_is_due = True
        if not self._stopped and self._timer is None:
            self._timer = self._loop.call_later(LINGER_SECONDS, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._wake_up_is_due = False
        if not self._stopped and self._trace.undelivered():
            self._send_soon()

    def _send_soon(self) -> "asyncio.Task[None]":
        if self._task is None or self._task.done():
            self._task = self._loop.create_task(self._send(), context=self._context.copy())
        return self._task

    async def _send(self) -> None:
        self._failure = None
        try:
            while batch := self._trace.undelivered():
                self._trace.acknowledge(batch, await self._store.add_many_spans(batch))
        except Exception as exc:
            self._failure = exc

    def _give_up(self) -> None:
        """The loop is closed. If the trace is not, no caller is left to raise its loss to."""
        self._trace.close()
        if lost := len(self._trace.undelivered()):
            logger.error(
                "lightning.trace_outlived_its_loop rollout_id=%s attempt_id=%s spans=%d; these spans were not stored",
                self._trace.rollout_id,
                self._trace.attempt_id,
                lost,
            )
