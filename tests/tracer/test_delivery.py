import asyncio
import gc
import logging
import threading
import weakref
from collections.abc import Iterator
from contextvars import copy_context
from typing import TYPE_CHECKING, Any

import pytest

from lightning_core.emitter import emit_message
from lightning_core.errors import StoreError, TracerError
from lightning_core.tracer import OtelTracer, Trace, otel, trace as trace_module
from lightning_core.tracer.trace import _Delivery
from lightning_core.types import Span

if TYPE_CHECKING:
    from tests.tracer.conftest import RecordingStore

IDS = {"rollout_id": "ro-1", "attempt_id": "at-1"}


@pytest.fixture
def impatient_tracer(monkeypatch: pytest.MonkeyPatch) -> Iterator[OtelTracer]:
    monkeypatch.setattr(otel, "CANCELLED_SECONDS", 0.01)
    tracer = OtelTracer(store_timeout_seconds=0.01)
    with tracer.lifespan():
        yield tracer


def stored(store: "RecordingStore") -> list[str]:
    return [span.attributes["agentlightning.message.body"] for span in store.attempts["at-1"]]


async def cancelled(task: "asyncio.Task[Any]") -> asyncio.CancelledError:
    with pytest.raises(asyncio.CancelledError) as caught:
        await task
    return caught.value


async def traced(tracer: OtelTracer, store: "RecordingStore", text: str, error: Exception | None = None) -> Trace:
    """Run an agent that emits a text, and fails if there is an error to raise."""
    async with tracer.trace_context(store=store, **IDS) as trace:
        emit_message(text)
        if error is not None:
            raise error
    return trace


def only_this_task_runs() -> bool:
    return asyncio.all_tasks() == {asyncio.current_task()}


async def test_spans_reach_the_store_while_the_trace_runs(tracer: OtelTracer, store: "RecordingStore") -> None:
    async with tracer.trace_context(store=store, **IDS):
        emit_message("early")
        await store.entered.wait()
        await asyncio.sleep(0)
        assert stored(store) == ["early"]
        assert only_this_task_runs()


async def test_spans_emitted_while_the_store_is_busy_go_in_one_batch(
    tracer: OtelTracer, store: "RecordingStore"
) -> None:
    store.gate.clear()
    async with tracer.trace_context(store=store, **IDS):
        emit_message("0")
        await store.entered.wait()
        for number in range(1, 10):
            emit_message(str(number))
            await asyncio.sleep(0)
        store.gate.set()
    assert [len(batch) for batch in store.batches] == [1, 9]
    assert stored(store) == [str(number) for number in range(10)]


async def test_spans_that_soon_follow_one_another_go_in_one_batch(
    tracer: OtelTracer, store: "RecordingStore", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_module, "LINGER_SECONDS", 60)
    async with tracer.trace_context(store=store, **IDS):
        for number in range(10):
            emit_message(str(number))
            await asyncio.sleep(0)
        assert store.batches == []
    assert [len(batch) for batch in store.batches] == [10]


async def test_flushed_trace_has_stored_what_it_recorded(
    tracer: OtelTracer, store: "RecordingStore", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_module, "LINGER_SECONDS", 60)
    async with tracer.trace_context(store=store, **IDS) as trace:
        await trace.flush()
        assert store.batches == []
        emit_message("a")
        await trace.flush()
        assert stored(store) == ["a"]
        emit_message("b")
    assert stored(store) == ["a", "b"]
    await trace.flush()
    assert [len(batch) for batch in store.batches] == [1, 1]


async def test_spans_of_a_thread_reach_the_store_while_the_trace_runs(
    tracer: OtelTracer, store: "RecordingStore"
) -> None:
    go_on = threading.Event()

    def agent() -> None:
        emit_message("from the thread")
        assert go_on.wait(timeout=30)

    async with tracer.trace_context(store=store, **IDS):
        running = asyncio.create_task(asyncio.to_thread(agent))
        await asyncio.wait_for(store.entered.wait(), timeout=30)
        go_on.set()
        await running
    assert stored(store) == ["from the thread"]


async def test_store_is_called_outside_of_every_trace(tracer: OtelTracer, store: "RecordingStore") -> None:
    def agent() -> None:
        with tracer.provider.get_tracer("agent").start_as_current_span("work"):
            emit_message("m")

    async with (
        tracer.trace_context("outer"),
        tracer.trace_context(store=store, **IDS),
    ):
        agent()
        await asyncio.to_thread(agent)
    assert len(store.attempts["at-1"]) == 4
    assert not store.saw_a_trace


async def test_store_failure_is_made_good_by_a_later_success(tracer: OtelTracer, store: "RecordingStore") -> None:
    store.errors = [StoreError("restarting")]
    async with tracer.trace_context(store=store, **IDS):
        emit_message("a")
        await store.entered.wait()
        await asyncio.sleep(0)
        assert stored(store) == []
        emit_message("b")
    assert stored(store) == ["a", "b"]


async def test_error_of_the_agent_goes_before_a_store_failure_and_tells_of_it(
    tracer: OtelTracer, store: "RecordingStore", caplog: pytest.LogCaptureFixture
) -> None:
    store.errors = [StoreError("disk full")] * 10
    with pytest.raises(RuntimeError, match="the agent failed") as caught, caplog.at_level(logging.ERROR):
        await traced(tracer, store, "lost", RuntimeError("the agent failed"))
    assert caught.value.__notes__ == ["1 spans of this trace were not stored: StoreError: disk full"]
    assert [record.getMessage() for record in caplog.records] == [
        "lightning.spans_not_stored rollout_id=ro-1 attempt_id=at-1 spans=1"
    ]


async def test_store_that_never_answers_is_an_error_after_the_timeout(
    impatient_tracer: OtelTracer, store: "RecordingStore"
) -> None:
    store.gate.clear()
    with pytest.raises(TracerError, match=r"did not acknowledge 1 spans of attempt 'at-1' within 0\.01 s; see whether"):
        await traced(impatient_tracer, store, "lost")
    assert only_this_task_runs()


async def test_trace_cancelled_while_it_waits_for_the_store_still_delivers(
    tracer: OtelTracer, store: "RecordingStore"
) -> None:
    store.gate.clear()

    task = asyncio.create_task(traced(tracer, store, "m"))
    await store.entered.wait()
    task.cancel()
    await asyncio.sleep(0)
    store.gate.set()
    await cancelled(task)
    assert stored(store) == ["m"]


async def test_trace_delivers_when_every_task_of_the_loop_is_cancelled(
    tracer: OtelTracer, store: "RecordingStore"
) -> None:
    store.gate.clear()

    async def rollout() -> None:
        async with tracer.trace_context(store=store, **IDS):
            emit_message("m")
            await asyncio.Event().wait()

    task = asyncio.create_task(rollout())
    await store.entered.wait()
    for running in asyncio.all_tasks() - {asyncio.current_task()}:
        running.cancel()
    store.gate.set()
    await cancelled(task)
    assert stored(store) == ["m"]


async def test_cancelled_trace_does_not_wait_long_for_a_store_that_never_answers(
    impatient_tracer: OtelTracer, store: "RecordingStore"
) -> None:
    store.gate.clear()

    async def rollout() -> None:
        async with impatient_tracer.trace_context(store=store, **IDS):
            emit_message("lost")
            await asyncio.Event().wait()

    task = asyncio.create_task(rollout())
    await store.entered.wait()
    task.cancel()
    error = await cancelled(task)
    assert error.__notes__[0].startswith("1 spans of this trace were not stored: TracerError: the store did not")
    assert only_this_task_runs()


def test_thread_outlives_the_tracer_and_the_loop_unharmed() -> None:
    go_on = threading.Event()
    failures: list[BaseException] = []

    def agent() -> None:
        assert go_on.wait(timeout=30)
        try:
            emit_message("late")
        except BaseException as exc:
            failures.append(exc)

    async def rollout() -> tuple[threading.Thread, object]:
        with tracer.lifespan():
            async with tracer.trace_context() as trace:
                thread = threading.Thread(target=agent, daemon=True)
                thread.start()
            return thread, trace

    tracer = OtelTracer()
    thread, trace = asyncio.run(rollout())
    go_on.set()
    thread.join(timeout=30)
    assert failures == []
    assert trace.dropped == 1  # type: ignore[attr-defined]


def test_trace_whose_loop_was_closed_is_closed_too_and_its_loss_is_logged(
    store: "RecordingStore", caplog: pytest.LogCaptureFixture
) -> None:
    trace = Trace(**IDS)

    async def start_and_forget() -> None:
        trace.listen(_Delivery(trace, store, copy_context()).wake)

    asyncio.run(start_and_forget())
    trace.record(Span.from_attributes(attributes={}))
    trace.record(Span.from_attributes(attributes={}))
    assert trace.dropped == 1
    assert [record.getMessage().split(";")[0] for record in caplog.records] == [
        "lightning.trace_outlived_its_loop rollout_id=ro-1 attempt_id=at-1 spans=1",
        "lightning.late_span_dropped trace=None rollout_id=ro-1 attempt_id=at-1 span='agentlightning.virtual'",
    ]


async def test_finished_trace_is_freed_without_the_garbage_collector(
    tracer: OtelTracer, store: "RecordingStore"
) -> None:
    async def rollout() -> "weakref.ref[object]":
        async with tracer.trace_context(store=store, **IDS) as trace:
            emit_message("m")
        return weakref.ref(trace)

    gc.disable()
    try:
        finished = [await asyncio.create_task(rollout()) for _ in range(3)]
        await asyncio.sleep(0)
        assert [trace() for trace in finished] == [None] * 3
    finally:
        gc.enable()
