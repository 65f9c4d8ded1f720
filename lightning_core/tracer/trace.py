"""What one traced block recorded."""

import logging
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import cast

from opentelemetry.context import Context, create_key, get_value, set_value

from lightning_core.types import Span

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
    """

    def __init__(
        self,
        name: str | None = None,
        *,
        rollout_id: str | None = None,
        attempt_id: str | None = None,
        run_id: str | None = None,
    ) -> None:
        self.name = name
        self.run_id = run_id
        self.rollout_id = rollout_id
        self.attempt_id = attempt_id
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
        """Drop, count and log whatever ends from now on. Leaving `trace_context` does this; twice is as once."""
        with self._lock:
            self._closed = True

    def record(self, span: Span) -> None:
        """Add a finished span."""
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

    def drop(self, span_name: str) -> None:
        """Count a span that ended too late."""
        with self._lock:
            self._dropped += 1
            first, self._lateness_logged = not self._lateness_logged, True
            lose = self._loss_listener
        if lose is not None:
            lose(1)
        if first:
            logger.warning(
                "lightning.late_span_dropped trace=%s rollout_id=%s attempt_id=%s span=%r; the trace is closed, "
                "and whatever else its threads and tasks still emit is dropped and counted too",
                self.name,
                self.rollout_id,
                self.attempt_id,
                span_name,
            )

    def discard(self, span_name: str, error: Exception) -> None:
        """Count a span that could not be read."""
        with self._lock:
            self._dropped += 1
            lose = self._loss_listener
        if lose is not None:
            lose(1)
        logger.error(
            "lightning.unreadable_span_dropped trace=%s rollout_id=%s attempt_id=%s span=%r",
            self.name,
            self.rollout_id,
            self.attempt_id,
            span_name,
            exc_info=error,
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
        """Take note of what the store has.

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
