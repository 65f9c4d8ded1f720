"""What a tracer is, and which one is active."""

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    ExitStack,
    asynccontextmanager,
    contextmanager,
)
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, TypeVar

from opentelemetry.context import attach, detach

from lightning_core.emitter import SpanRecordingContext
from lightning_core.emitter.attributes import flatten_attributes
from lightning_core.emitter.emission import OK, get_active_sink, record_locally, with_active_sink
from lightning_core.errors import TracerError
from lightning_core.tracer.trace import Trace, with_current_trace
from lightning_core.types import Span, SpanCoreFields, TraceStatus

if TYPE_CHECKING:
    from lightning_core.store.base import LightningStore


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
    if asyncio._get_running_loop() is not None:
        raise TracerError(
            "trace_run was called where an event loop runs; await trace_run_async, or use `async with trace_context()`"
        )
    context, stack = copy_context(), AsyncExitStack()
    try:
        with asyncio.Runner() as runner:
            runner.run(stack.enter_async_context(manager), context=context)
            try:
                result = context.run(func, *args, **kwargs)
            except BaseException:
                runner.run(stack.__aexit__(*sys.exc_info()), context=context)
                raise
            runner.run(stack.aclose(), context=context)
            return result
    finally:
        for variable, value in context.items():
            if variable.get(_MISSING) is not value:
                variable.set(value)


class Tracer:
    """Records what an agent does, as spans.

    One tracer serves any number of traces at the same time in one process. Which trace a span belongs to travels in
    the OpenTelemetry context, so tasks and threads that are started inside of a trace belong to it.

    A subclass implements `trace_context`, which yields a `Trace`, and `get_last_trace`. Agents that call emitters need
    `create_span` and `operation_context` as well. One that yields something else, as in 0.3, needs lightning-legacy.
    """

    _store: "LightningStore | None" = None  # by this name subclasses of 0.3 have it

    def init(self) -> None:
        """Prepare this process for tracing. Each call needs one of `teardown`."""

    def teardown(self) -> None:
        """Undo one `init`; the last one undoes its effects. Does nothing without an `init`."""

    def init_worker(self, worker_id: int, store: "LightningStore | None" = None) -> None:
        """Prepare for a worker's traces.

        Args:
            worker_id: Tells the workers of this process apart.
            store: Where `trace_context` sends spans when it is given no store. The workers of one process share one:
                the last call counts.
        """
        self._store = store

    def teardown_worker(self, worker_id: int) -> None:
        """Undo `init_worker`, but for the store, which other workers may share."""

    @property
    def store(self) -> "LightningStore | None":
        """Where `trace_context` sends spans when it is given no store."""
        return self._store

    def trace_context(
        self,
        name: str | None = None,
        *,
        store: "LightningStore | None" = None,
        rollout_id: str | None = None,
        attempt_id: str | None = None,
    ) -> AbstractAsyncContextManager[Trace]:
        """Record what happens in an `async with` block.

        With ids, spans go to the store while the block runs. When it has been left, the store has acknowledged every
        span that ended in it. When the store fails, its error is raised on leaving; an error of the block itself
        goes first, then the store's one is logged and told in a note. A cancelled block waits for the store only
        shortly. What the block's threads and tasks emit after that is dropped and counted.

        Without ids, spans are only collected.

        Args:
            name: Tells traces apart in log messages; no span is made for the block itself.
            store: Where to send the spans; None for the one that `init_worker` was given.
            rollout_id: The rollout that the spans belong to; goes with `attempt_id`.
            attempt_id: The attempt that the spans belong to.

        Raises:
            TracerError: When the tracer was not initialised, or the store did not answer in time.
            ValueError: For one id without the other, or ids without a store.
        """
        raise NotImplementedError(f"{type(self).__name__} does not implement trace_context")

    def unrecorded_clients(self) -> Mapping[str, str]:
        """Return the model clients in use whose calls this tracer does not record: module -> what to install."""
        return {}

    def get_last_trace(self) -> list[Span]:
        """Return the spans of the trace that the calling context entered last, left or not; none without one."""
        raise NotImplementedError(f"{type(self).__name__} does not implement get_last_trace")

    def create_span(
        self,
        name: str,
        attributes: Mapping[str, Any] | None = None,
        timestamp: float | None = None,
        status: TraceStatus | None = None,
    ) -> SpanCoreFields:
        """Record a span that starts and ends at once, in the trace of the calling context. Never waits for the store.

        Args:
            name: The span's name.
            attributes: The span's attributes.
            timestamp: When, in seconds since the epoch; None for now.
            status: The span's status; None for OK.

        Returns:
            The span, without an identity.

        Raises:
            NoActiveTracer: Outside of a trace of this tracer.
            ValueError: For an attribute that no span can have; it is named.
        """
        raise NotImplementedError(f"{type(self).__name__} does not implement create_span")

    def operation_context(
        self,
        name: str,
        attributes: Mapping[str, Any] | None = None,
        start_time: float | None = None,
        end_time: float | None = None,
    ) -> AbstractContextManager[SpanRecordingContext]:
        """Record a span around a `with` block, in the trace of the calling context.

        What is recorded in the block becomes a child of the span. What the block raises, cancellation included, is
        recorded on it and goes on.

        Args:
            name: The span's name.
            attributes: The attributes that it begins with; nested ones are flattened with dots.
            start_time: When it began, in seconds since the epoch; None for now.
            end_time: When it is said to end; None for when the block does.

        Raises:
            NoActiveTracer: Outside of a trace of this tracer, on entering.
            ValueError: For an attribute that no span can have, on entering; it is named.
        """
        raise NotImplementedError(f"{type(self).__name__} does not implement operation_context")

    def trace_run(self, func: Callable[..., ResultT], *args: Any, **kwargs: Any) -> ResultT:
        """Call a function in a trace of its own, and return what it returns; for scripts and for debugging.

        The spans are only collected: `get_last_trace` has them. The function runs in this thread, and in the calling
        context, with no event loop running.

        Raises:
            TracerError: When the tracer was not initialised, or an event loop runs in this thread already.
        """
        return run_inline(self.trace_context(getattr(func, "__name__", None)), func, *args, **kwargs)

    async def trace_run_async(self, func: Callable[..., Awaitable[ResultT]], *args: Any, **kwargs: Any) -> ResultT:
        """Await a coroutine function in a trace of its own, and return what it returns.

        The spans are only collected: `get_last_trace` has them.

        Raises:
            TracerError: When the tracer was not initialised.
        """
        async with self.trace_context(getattr(func, "__name__", None)):
            return await func(*args, **kwargs)

    def get_langchain_handler(self) -> Any:
        """Return the callback handler that LangChain agents need to be traced; None where they need none."""
        return None

    @contextmanager
    def lifespan(self, store: "LightningStore | None" = None) -> Iterator[None]:
        """Initialise for a `with` block, and tear down after it: for scripts and for debugging.

        Args:
            store: As for `init_worker`.
        """
        with ExitStack() as undo:
            self.init()
            undo.callback(self.teardown)
            self.init_worker(0, store)
            undo.callback(self.teardown_worker, 0)
            yield


def get_active_tracer() -> Tracer | None:
    """Return the tracer that what is emitted here goes to; None outside of a trace."""
    sink = get_active_sink()
    return sink if isinstance(sink, Tracer) else None


def set_active_tracer(tracer: Tracer) -> None:
    """Make a tracer the active one of the calling context: of this task or thread, and of those started from it.

    `trace_context` does this by itself.

    Raises:
        ValueError: When another one is active.
    """
    active = get_active_sink()
    if active is not None:
        raise ValueError(f"{active!r} is the active tracer here; call clear_active_tracer() before setting {tracer!r}")
    attach(with_active_sink(tracer))


def clear_active_tracer() -> None:
    """Leave the calling context without an active tracer."""
    attach(with_active_sink(None))


class DummyTracer(Tracer):
    """Takes whatever is emitted, and forgets it: for tests of code that emits.

    It needs no `init`, and no trace for `create_span` and `operation_context`. Nothing reaches a store.
    """

    @asynccontextmanager
    async def trace_context(
        self,
        name: str | None = None,
        *,
        store: "LightningStore | None" = None,
        rollout_id: str | None = None,
        attempt_id: str | None = None,
    ) -> AsyncIterator[Trace]:
        """Make this tracer the active one in an `async with` block; the trace stays empty, and the store unused."""
        trace = Trace(name, rollout_id=rollout_id, attempt_id=attempt_id)
        token = attach(with_current_trace(trace, with_active_sink(self)))
        try:
            yield trace
        finally:
            trace.close()
            detach(token)

    def get_last_trace(self) -> list[Span]:
        """Return no spans."""
        return []

    def create_span(
        self,
        name: str,
        attributes: Mapping[str, Any] | None = None,
        timestamp: float | None = None,
        status: TraceStatus | None = None,
    ) -> SpanCoreFields:
        """Return the span that another tracer would have recorded."""
        moment = time.time() if timestamp is None else timestamp
        flat = flatten_attributes(attributes or {})
        return SpanCoreFields(name=name, attributes=flat, start_time=moment, end_time=moment, status=status or OK)

    def operation_context(
        self,
        name: str,
        attributes: Mapping[str, Any] | None = None,
        start_time: float | None = None,
        end_time: float | None = None,
    ) -> AbstractContextManager[SpanRecordingContext]:
        """Make a span of a `with` block that is not recorded."""
        return record_locally(name, attributes, start_time, end_time)
