"""What one traced block recorded, and its delivery to the store while it is recorded."""

import asyncio
import contextvars
import logging
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from opentelemetry import trace as otel
from opentelemetry.context import Context, create_key, get_value, set_value

from lightning_core.errors import TracerError
from lightning_core.types import OtelResource, Span

if TYPE_CHECKING:
    from lightning_core.store.base import LightningStore

logger = logging.getLogger(__name__)

_CURRENT_TRACE = create_key("lightning-current-trace")


class Trace:
    """The spans of one traced block, in the order in which they ended.

    Every method but `flush` may be called from any thread, none of them blocks, and none raises into the code that is
    traced.

    Args:
        name: Tells traces without ids apart in log messages.
        rollout_id: The rollout that the spans belong to; None when they are only collected.
        attempt_id: The attempt that they belong to; None when they are only collected.
        run_id: The run that the rollout belongs to, where that is known.
        resource: What produces its spans; None where the tracer's library says it.
    """

    def __init__(
        self,
        name: str | None = None,
        *,
        rollout_id: str | None = None,
        attempt_id: str | None = None,
        run_id: str | None = None,
        resource: OtelResource | None = None,
    ) -> None:
        self.name = name
        self.run_id = run_id
        self.rollout_id = rollout_id
        self.attempt_id = attempt_id
        self.resource = resource
        self.otel_tracer: otel.Tracer | None = None
        # Reentrant: the garbage collector may end a span in the middle of any of these methods, in the same thread.
        self._lock = threading.RLock()
        self._spans: list[Span] = []
        self._acknowledged = 0
        self._dropped = 0
        self._closed = False
        self._lateness_logged = False
        self._listener: Callable[[], None] | None = None
        self._deliver: Callable[[], Awaitable[object]] | None = None
        self._loss_listener: Callable[[int], None] | None = None

    def __repr__(self) -> str:
        label = f"trace={self.name} rollout_id={self.rollout_id} attempt_id={self.attempt_id}"
        return f"<Trace {label}: {len(self._spans)} spans, {self._dropped} dropped>"

    @property
    def spans(self) -> list[Span]:
        """What was recorded so far.

        A span has the `sequence_id` that the store gave it, and 0 before the store did. Without a store, spans count
        from 1.
        """
        with self._lock:
            return list(self._spans)

    @property
    def dropped(self) -> int:
        """How many spans were lost: they ended after the trace was closed, or could not be read. Both are logged."""
        return self._dropped

    @property
    def closed(self) -> bool:
        """Whether spans that end now are dropped."""
        return self._closed

    def close(self) -> None:
        """Drop, count and log whatever ends from now on. Leaving `trace_context` does this. Idempotent."""
        with self._lock:
            self._closed = True

    def record(self, span: Span) -> bool:
        """Add a finished span; return whether it is not too late."""
        with self._lock:
            accepted = not self._closed
            listener = self._listener
            if accepted:
                self._spans.append(span)
                if listener is None:
                    span.sequence_id = len(self._spans)
        if not accepted:
            self.drop(span.name)
        elif listener is not None:
            listener()
        return accepted

    def start_span(self, name: str, *args: Any, **kwargs: Any) -> otel.Span:
        """Start a span by hand; see `opentelemetry.trace.Tracer`, as which 0.3 used what `trace_context` gives.

        Raises:
            TracerError: When the trace is not of an OpenTelemetry tracer.
        """
        return self._otel().start_span(name, *args, **kwargs)

    def start_as_current_span(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Start a span by hand for a `with` block; see `start_span`."""
        return self._otel().start_as_current_span(name, *args, **kwargs)

    def _otel(self) -> otel.Tracer:
        if self.otel_tracer is None:
            raise TracerError("this trace is not of an OpenTelemetry tracer; take an OtelTracer to make spans by hand")
        return self.otel_tracer

    def drop(self, span_name: str, error: Exception | None = None) -> None:
        """Count a span that ended too late, or could not be read: with this error."""
        with self._lock:
            self._dropped += 1
            first = error is None and not self._lateness_logged
            self._lateness_logged |= first
            lose = self._loss_listener
        if lose is not None:
            lose(1)
        if error is not None:
            logger.error(
                "lightning.unreadable_span_dropped trace=%s rollout_id=%s attempt_id=%s span=%r",
                self.name,
                self.rollout_id,
                self.attempt_id,
                span_name,
                exc_info=error,
            )
        elif first:
            logger.warning(
                "lightning.late_span_dropped trace=%s rollout_id=%s attempt_id=%s span=%r; the trace is closed, "
                "and whatever else its threads and tasks still emit is dropped and counted too",
                self.name,
                self.rollout_id,
                self.attempt_id,
                span_name,
            )

    def listen(
        self, listener: Callable[[], None] | None, deliver: Callable[[], Awaitable[object]] | None = None
    ) -> None:
        """Record who delivers the spans; None when delivery has ended.

        Args:
            listener: Called after each span that is recorded, in the thread where it ended.
            deliver: Sends what was recorded so far, in the event loop of the delivery.
        """
        self._listener, self._deliver = listener, deliver

    async def flush(self) -> None:
        """Wait until the store has what was recorded so far: before storing something that comes after it.

        In the event loop of the trace. What cannot be stored is tried again, and raised, when the trace is left.
        """
        if self._deliver is not None:
            await self._deliver()

    def tell_losses(self, listener: Callable[[int], None]) -> None:
        """Call `listener` with how many spans were lost so far, and for each that is lost from now on, in any thread.

        The counter need not keep the trace.
        """
        with self._lock:
            self._loss_listener = listener
            dropped = self._dropped
        if dropped:
            listener(dropped)

    def undelivered(self) -> list[Span]:
        """Return what was recorded and not yet acknowledged."""
        with self._lock:
            return self._spans[self._acknowledged :]

    def acknowledge(self, delivered: Sequence[Span], stored: Sequence[Span]) -> None:
        """Record what the store has.

        Args:
            delivered: What was delivered: what `undelivered` returned.
            stored: What the store made of them. It may leave out what it had before.
        """
        numbered = {span.span_id: span for span in stored}
        with self._lock:
            start = self._acknowledged
            self._acknowledged = start + len(delivered)
            self._spans[start : self._acknowledged] = [numbered.get(span.span_id, span) for span in delivered]


def current_trace() -> Trace | None:
    """Find the trace that the calling context is in, of whatever tracer; None outside of one.

    Tasks and threads of a trace are in it even after it was closed.
    """
    return cast("Trace | None", get_value(_CURRENT_TRACE))


def with_current_trace(trace: Trace, context: Context | None = None) -> Context:
    """Make an OpenTelemetry context that is in this trace; attaching it is up to the tracer.

    Args:
        trace: The trace.
        context: What the new context adds to; None for the current one.
    """
    return set_value(_CURRENT_TRACE, trace, context)


LINGER_SECONDS = 0.01
"""How long a span may wait for others that go with it: one call of the store for many is much less work."""

_LAST_TRIES = 2
"""When a trace ends: one for what is under way, which may fail or be cancelled, and one for what that leaves."""


@asynccontextmanager
async def delivering(
    trace: Trace,
    store: "LightningStore",
    *,
    context: contextvars.Context,
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

    def __init__(self, trace: Trace, store: "LightningStore", context: contextvars.Context) -> None:
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
