"""The conformance suite of tracers."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from lightning_core.emitter import (
    emit_annotation,
    emit_exception,
    emit_message,
    emit_object,
    emit_reward,
    find_final_reward,
    get_message_value,
    get_object_value,
    operation,
)
from lightning_core.errors import NoActiveTracer
from lightning_core.semconv import AGL_ANNOTATION, AGL_EXCEPTION, AGL_MESSAGE, AGL_OBJECT, AGL_OPERATION
from lightning_core.store import InMemoryLightningStore, LightningStore
from lightning_core.testing.store.base import PATIENCE_SECONDS, present
from lightning_core.tracer import Trace, Tracer, current_trace, get_active_tracer
from lightning_core.types import AttemptedRollout, Span, TraceStatus

CONCURRENT_TRACES = 64


class UnreachableStore(InMemoryLightningStore):
    """A store to which no span can be written."""

    async def add_span(self, span: Span) -> Span | None:
        raise ConnectionError("the store is gone")

    async def add_many_spans(self, spans: Sequence[Span]) -> Sequence[Span]:
        raise ConnectionError("the store is gone")

    async def add_otel_span(self, *args: Any, **kwargs: Any) -> Span | None:
        raise ConnectionError("the store is gone")


@dataclass(slots=True)
class Traced:
    """An attempt that is being traced, and what the store has of it."""

    store: LightningStore
    attempt: AttemptedRollout
    trace: Trace

    async def spans(self) -> Sequence[Span]:
        """Return what the store has, in order."""
        return await self.store.query_spans(self.attempt.rollout_id, self.attempt.attempt.attempt_id)

    async def names(self) -> list[str]:
        """Return the names of what the store has, in order."""
        return [span.name for span in await self.spans()]


class TracerSuite:
    """Proves that a tracer keeps every promise of `Tracer`.

    Subclass it in a test file, and say how to make a tracer:

        from lightning_core.testing import TracerSuite
        from my_package import MyTracer


        class TestMyTracer(TracerSuite):
            def make_tracer(self):
                # Not yet initialised: the suite calls `init` and `teardown`.
                return MyTracer(account=None)

            def is_ours(self, span):
                # A span that the tracer adds by itself, around the block for example, is not counted.
                return span.name != "my_package.session"

            def traced_function(self, tracer, name, function):
                # What the tracer's library records of functions, besides what is emitted.
                return my_library.traced(name=name)(function)

    The suite traces attempts in a memory store. A test that a tracer cannot pass yet can be overridden by its name,
    with the reason.
    """

    pytestmark = pytest.mark.asyncio

    def make_tracer(self) -> Tracer:
        """Return a tracer that is not initialised."""
        raise NotImplementedError("override make_tracer: return a tracer that is not initialised")

    def is_ours(self, span: Span) -> bool:
        """Tell whether a span was asked for by the test, and not added by the tracer itself."""
        return True

    def traced_function(self, tracer: Tracer, name: str, function: Callable[..., Any]) -> Callable[..., Any] | None:
        """Make the tracer's library record each call of a function as a span of this name.

        Args:
            tracer: It is initialised.
            name: What the span is called.
            function: Plain or `async`.

        Returns:
            The function to call instead; None where the tracer records nothing but what is emitted: then the tests
            of such functions are skipped.
        """
        return None

    def _traced_function(self, tracer: Tracer, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        traced = self.traced_function(tracer, name, function)
        if traced is None:
            pytest.skip("this tracer records nothing but what is emitted; override traced_function if it does")
        return traced

    @pytest.fixture
    def tracer(self) -> Iterator[Tracer]:
        tracer = self.make_tracer()
        with tracer.lifespan():
            yield tracer

    @pytest.fixture
    def store(self) -> LightningStore:
        return InMemoryLightningStore()

    @asynccontextmanager
    async def traced(self, tracer: Tracer, store: LightningStore) -> AsyncIterator[Traced]:
        """Trace a new attempt in the block."""
        attempt = await store.start_rollout("task")
        async with tracer.trace_context(
            store=store, rollout_id=attempt.rollout_id, attempt_id=attempt.attempt.attempt_id
        ) as trace:
            yield Traced(store, attempt, trace)

    async def ours(self, traced: Traced) -> list[Span]:
        """Return the spans in the store that the test asked for."""
        return [span for span in await traced.spans() if self.is_ours(span)]

    # Delivery

    async def test_spans_are_in_the_store_when_the_block_was_left(self, tracer: Tracer, store: LightningStore) -> None:
        async with self.traced(tracer, store) as traced:
            tracer.create_span("first", {"a": 1, "none": None}, timestamp=1_700_000_000.5)
            tracer.create_span("second", status=TraceStatus(status_code="ERROR", description="why"))
        first, second = await self.ours(traced)
        assert (first.name, first.attributes["a"], first.attributes["none"]) == ("first", 1, None)
        assert first.start_time == first.end_time == 1_700_000_000.5
        assert first.status.status_code == "OK"
        assert (second.status.status_code, second.status.description) == ("ERROR", "why")
        assert first.rollout_id == traced.attempt.rollout_id
        assert first.attempt_id == traced.attempt.attempt.attempt_id
        assert 0 < first.sequence_id < second.sequence_id

    async def test_the_trace_has_what_the_store_has(self, tracer: Tracer, store: LightningStore) -> None:
        async with self.traced(tracer, store) as traced:
            for number in range(20):
                tracer.create_span(f"span {number}")
                await asyncio.sleep(0)
        stored = await traced.spans()
        assert [span.span_id for span in traced.trace.spans] == [span.span_id for span in stored]
        assert [span.span_id for span in tracer.get_last_trace()] == [span.span_id for span in stored]
        assert (traced.trace.closed, traced.trace.dropped) == (True, 0)

    async def test_spans_without_ids_are_collected_only(self, tracer: Tracer) -> None:
        async with tracer.trace_context() as trace:
            tracer.create_span("collected")
        assert [span.name for span in trace.spans if self.is_ours(span)] == ["collected"]

    async def test_the_store_of_the_worker_is_used_where_none_is_given(self, store: LightningStore) -> None:
        tracer = self.make_tracer()
        attempt = await store.start_rollout("task")
        with tracer.lifespan(store):
            async with tracer.trace_context(rollout_id=attempt.rollout_id, attempt_id=attempt.attempt.attempt_id):
                tracer.create_span("stored")
        spans = await store.query_spans(attempt.rollout_id)
        assert [span.name for span in spans if self.is_ours(span)] == ["stored"]

    async def test_one_id_without_the_other_is_refused(self, tracer: Tracer, store: LightningStore) -> None:
        with pytest.raises(ValueError, match="attempt_id"):
            async with tracer.trace_context(store=store, rollout_id="ro-1"):
                pass

    async def test_what_no_span_can_have_is_refused_by_its_name(self, tracer: Tracer, store: LightningStore) -> None:
        async with self.traced(tracer, store) as traced:
            with pytest.raises(ValueError, match="weird"):
                tracer.create_span("refused", {"weird": object()})
            with pytest.raises(ValueError, match="weird"), tracer.operation_context("refused", {"weird": object()}):
                pass
            tracer.create_span("taken")
        assert [span.name for span in await self.ours(traced)] == ["taken"]

    async def test_a_store_that_fails_is_told_of(self, tracer: Tracer) -> None:
        with pytest.raises(ConnectionError, match="the store is gone"):
            async with self.traced(tracer, UnreachableStore()):
                tracer.create_span("lost")

    # Failure and cancellation

    async def test_what_was_recorded_before_an_error_is_stored(self, tracer: Tracer, store: LightningStore) -> None:
        kept: list[Traced] = []

        async def fail() -> None:
            async with self.traced(tracer, store) as traced:
                kept.append(traced)
                tracer.create_span("before")
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await fail()
        assert [span.name for span in await self.ours(kept[0])] == ["before"]

    async def test_what_was_recorded_before_a_cancellation_is_stored(
        self, tracer: Tracer, store: LightningStore
    ) -> None:
        before, *_ = await self._cancelled_in(tracer, store, "waiting")
        assert before.name == "before"

    async def test_an_operation_that_is_cancelled_is_stored_as_failed(
        self, tracer: Tracer, store: LightningStore
    ) -> None:
        spans = await self._cancelled_in(tracer, store, "waiting")
        (waiting,) = (span for span in spans if span.attributes.get("agentlightning.operation.name") == "waiting")
        assert waiting.status.status_code == "ERROR"
        assert waiting.end_time is not None

    async def test_a_cancelled_trace_leaves_the_others_whole(self, tracer: Tracer, store: LightningStore) -> None:
        entered: asyncio.Queue[int] = asyncio.Queue()
        go_on = asyncio.Event()

        async def rollout(number: int) -> Traced:
            async with self.traced(tracer, store) as traced:
                with operation(name=f"work {number}"):
                    entered.put_nowait(number)
                    await go_on.wait()
                    tracer.create_span(f"done {number}")
            return traced

        tasks = [asyncio.create_task(rollout(number)) for number in range(CONCURRENT_TRACES)]
        for _ in tasks:
            await asyncio.wait_for(entered.get(), PATIENCE_SECONDS)
        for task in tasks[::2]:
            task.cancel()
        go_on.set()
        async with asyncio.timeout(PATIENCE_SECONDS):
            ended = await asyncio.gather(*tasks, return_exceptions=True)
        for number, outcome in enumerate(ended):
            if number % 2 == 0:
                assert isinstance(outcome, asyncio.CancelledError)
            else:
                assert isinstance(outcome, Traced)
                done, work = await self.ours(outcome)
                assert done.name == f"done {number}"
                assert work.attributes["agentlightning.operation.name"] == f"work {number}"
                assert work.status.status_code == "OK"

    async def test_what_is_emitted_too_late_is_dropped_and_counted(self, tracer: Tracer, store: LightningStore) -> None:
        late = threading.Event()

        def agent() -> None:
            late.wait(PATIENCE_SECONDS)
            emit_message("too late")

        async with self.traced(tracer, store) as traced:
            tracer.create_span("in time")
            thread = threading.Thread(target=agent, daemon=True)
            thread.start()
        late.set()
        await asyncio.to_thread(thread.join, PATIENCE_SECONDS)
        assert traced.trace.dropped == 1
        assert [span.name for span in await self.ours(traced)] == ["in time"]

    # Attribution

    async def test_concurrent_traces_have_their_own_spans(self, tracer: Tracer, store: LightningStore) -> None:
        async def rollout(number: int) -> Traced:
            async with self.traced(tracer, store) as traced:
                tracer.create_span(f"{number} begins")
                await asyncio.sleep(0)
                await asyncio.create_task(child(number))
                emit_reward(number)
            return traced

        async def child(number: int) -> None:
            await asyncio.sleep(0)
            tracer.create_span(f"{number} in a task")

        everything = await asyncio.gather(*(rollout(number) for number in range(CONCURRENT_TRACES)))
        for number, traced in enumerate(everything):
            spans = await self.ours(traced)
            assert [span.name for span in spans] == [f"{number} begins", f"{number} in a task", AGL_ANNOTATION]
            assert find_final_reward(spans) == number

    async def test_threads_of_a_trace_belong_to_it(self, tracer: Tracer, store: LightningStore) -> None:
        async def rollout(number: int, pool: ThreadPoolExecutor) -> Traced:
            async with self.traced(tracer, store) as traced:
                thread = threading.Thread(target=tracer.create_span, args=(f"{number} thread",))
                thread.start()
                await asyncio.to_thread(thread.join, PATIENCE_SECONDS)
                await asyncio.to_thread(tracer.create_span, f"{number} to_thread")
                await asyncio.wrap_future(pool.submit(tracer.create_span, f"{number} pool"))
            return traced

        with ThreadPoolExecutor(max_workers=4) as pool:
            everything = await asyncio.gather(*(rollout(number, pool) for number in range(CONCURRENT_TRACES)))
        for number, traced in enumerate(everything):
            names = [span.name for span in await self.ours(traced)]
            assert names == [f"{number} thread", f"{number} to_thread", f"{number} pool"]

    async def test_an_agent_in_a_thread_has_its_own_spans(self, tracer: Tracer, store: LightningStore) -> None:
        async def part(number: int) -> None:
            await asyncio.sleep(0)
            emit_message(f"{number} in a loop of its own")

        def agent(number: int) -> None:
            with operation(name=f"{number} works"):
                tracer.create_span(f"{number} in a thread")
                asyncio.run(part(number))
            emit_reward(number)

        async def rollout(number: int, pool: ThreadPoolExecutor) -> Traced:
            async with self.traced(tracer, store) as traced:
                await asyncio.get_running_loop().run_in_executor(pool, agent, number)
            return traced

        with ThreadPoolExecutor(max_workers=8) as pool:
            everything = await asyncio.gather(*(rollout(number, pool) for number in range(CONCURRENT_TRACES)))
        for number, traced in enumerate(everything):
            inside, message, works, reward = await self.ours(traced)
            assert inside.name == f"{number} in a thread"
            assert get_message_value(message) == f"{number} in a loop of its own"
            assert works.attributes["agentlightning.operation.name"] == f"{number} works"
            assert inside.parent_id == message.parent_id == works.span_id
            assert find_final_reward([reward]) == number
            assert traced.trace.dropped == 0

    async def test_two_tracers_of_a_kind_have_traces_of_their_own(self, store: LightningStore) -> None:
        one, other = self.make_tracer(), self.make_tracer()
        with one.lifespan():
            with other.lifespan():
                async with self.traced(one, store) as of_one, self.traced(other, store) as of_other:
                    emit_message("to the inner one")
                assert get_active_tracer() is None
            async with self.traced(one, store) as again:
                emit_message("the other one is gone")
        assert await self.ours(of_one) == []
        for traced, text in ((of_other, "to the inner one"), (again, "the other one is gone")):
            assert [get_message_value(span) for span in await self.ours(traced)] == [text]

    async def test_an_inner_trace_takes_the_spans_until_it_is_left(self, tracer: Tracer, store: LightningStore) -> None:
        async with self.traced(tracer, store) as outer:
            async with self.traced(tracer, store) as inner:
                tracer.create_span("in the inner one")
            tracer.create_span("after it")
        assert [span.name for span in await self.ours(inner)] == ["in the inner one"]
        assert [span.name for span in await self.ours(outer)] == ["after it"]

    async def test_the_tracer_and_its_trace_are_found_inside_of_the_block_only(
        self, tracer: Tracer, store: LightningStore
    ) -> None:
        async with self.traced(tracer, store) as traced:
            assert get_active_tracer() is tracer
            assert current_trace() is traced.trace
        assert get_active_tracer() is None
        assert current_trace() is None
        with pytest.raises(NoActiveTracer):
            emit_message("to nobody")
        with pytest.raises(NoActiveTracer), operation(name="for nobody"):
            pass

    # Emitters

    async def test_emitters_reach_the_store(self, tracer: Tracer, store: LightningStore) -> None:
        async with self.traced(tracer, store) as traced:
            emit_reward({"quality": 0.5, "speed": 1.0})
            emit_message("hello", attributes={"note": {"by": "me"}})
            emit_object({"k": [1, None]})
            emit_annotation({"source": {"name": "test"}})
            emit_exception(ValueError("no good"))
        reward, message, object, annotation, exception = await self.ours(traced)
        assert find_final_reward([reward]) == 0.5
        assert (message.name, get_message_value(message), message.attributes["note.by"]) == (AGL_MESSAGE, "hello", "me")
        assert (object.name, get_object_value(object)) == (AGL_OBJECT, {"k": [1, None]})
        assert (annotation.name, annotation.attributes["source.name"]) == (AGL_ANNOTATION, "test")
        assert (exception.name, exception.attributes["exception.message"]) == (AGL_EXCEPTION, "no good")

    async def test_an_operation_is_a_span_around_what_happens_in_it(
        self, tracer: Tracer, store: LightningStore
    ) -> None:
        @operation(kind="tool")
        async def search(query: str) -> list[str]:
            await asyncio.sleep(0)
            tracer.create_span("inside")
            return [query.upper()]

        async with self.traced(tracer, store) as traced:
            assert await search("x") == ["X"]
        inside, around = await self.ours(traced)
        assert (inside.name, around.name) == ("inside", AGL_OPERATION)
        assert inside.parent_id == around.span_id
        assert around.attributes["agentlightning.operation.name"] == "search"
        assert around.attributes["agentlightning.operation.input.query"] == "x"
        assert list(around.attributes["agentlightning.operation.output"]) == ["X"]
        assert around.attributes["kind"] == "tool"
        assert present(around.start_time) <= present(around.end_time)

    async def test_an_operation_that_fails_says_so_and_the_error_goes_on(
        self, tracer: Tracer, store: LightningStore
    ) -> None:
        async with self.traced(tracer, store) as traced:
            with pytest.raises(ValueError, match="no good"), operation(name="risky") as risky:
                raise ValueError("no good")
        (failed,) = await self.ours(traced)
        assert failed.status.status_code == risky.span().status.status_code == "ERROR"
        assert failed.status.description == "no good"

    async def test_operations_nest_in_those_of_their_own_trace(self, tracer: Tracer, store: LightningStore) -> None:
        async def rollout(number: int) -> Traced:
            async with self.traced(tracer, store) as traced:
                with operation(name="outer"):
                    await asyncio.sleep(0)
                    with operation(name="middle"):
                        await asyncio.create_task(inner())
                    with operation(name="beside"):
                        await asyncio.sleep(0)
            return traced

        async def inner() -> None:
            with operation(name="inner"):
                await asyncio.sleep(0)

        for traced in await asyncio.gather(*(rollout(number) for number in range(CONCURRENT_TRACES))):
            spans = {span.attributes["agentlightning.operation.name"]: span for span in await self.ours(traced)}
            assert list(spans) == ["inner", "middle", "beside", "outer"]
            assert spans["inner"].parent_id == spans["middle"].span_id
            assert spans["middle"].parent_id == spans["beside"].parent_id == spans["outer"].span_id
            assert len({span.trace_id for span in spans.values()}) == 1
            assert len({span.span_id for span in spans.values()}) == 4

    async def test_an_operation_whose_trace_is_closed_is_dropped_and_counted(
        self, tracer: Tracer, store: LightningStore
    ) -> None:
        opened, late = threading.Event(), threading.Event()

        def agent() -> None:
            with operation(name="slow"):
                opened.set()
                late.wait(PATIENCE_SECONDS)

        async with self.traced(tracer, store) as traced:
            thread = threading.Thread(target=agent, daemon=True)
            thread.start()
            assert await asyncio.to_thread(opened.wait, PATIENCE_SECONDS)
        late.set()
        await asyncio.to_thread(thread.join, PATIENCE_SECONDS)
        assert traced.trace.dropped == 1
        assert await self.ours(traced) == []

    # Lifetime

    async def test_a_tracer_can_be_initialised_again(self, store: LightningStore) -> None:
        tracer = self.make_tracer()
        for _ in range(2):
            with tracer.lifespan():
                async with self.traced(tracer, store) as traced:
                    tracer.create_span("once")
            assert [span.name for span in await self.ours(traced)] == ["once"]

    async def test_a_coroutine_function_can_be_run_in_a_trace(self, tracer: Tracer) -> None:
        async def double(number: int) -> int:
            tracer.create_span("doubled")
            return 2 * number

        assert await tracer.trace_run_async(double, 4) == 8
        assert [span.name for span in tracer.get_last_trace() if self.is_ours(span)] == ["doubled"]

    # What the tracer's library records of functions

    async def test_traced_functions_belong_to_the_trace_that_calls_them(
        self, tracer: Tracer, store: LightningStore
    ) -> None:
        def leaf(number: int) -> int:
            emit_message(f"leaf of {number}")
            return number

        plain = self._traced_function(tracer, "leaf", leaf)

        async def branch(number: int) -> int:
            await asyncio.sleep(0)
            in_thread: int = await asyncio.to_thread(plain, number)
            return in_thread + int(plain(number))

        awaited = self._traced_function(tracer, "branch", branch)

        async def rollout(number: int) -> Traced:
            async with self.traced(tracer, store) as traced:
                with operation(name="around"):
                    assert await awaited(number) == 2 * number
                emit_reward(number)
            return traced

        for number, traced in enumerate(await asyncio.gather(*(rollout(n) for n in range(CONCURRENT_TRACES)))):
            first, one, second, other, branch_span, around, reward = await self.ours(traced)
            assert [one.name, other.name, branch_span.name] == ["leaf", "leaf", "branch"]
            assert get_message_value(first) == get_message_value(second) == f"leaf of {number}"
            assert (first.parent_id, second.parent_id) == (one.span_id, other.span_id)
            assert one.parent_id == other.parent_id == branch_span.span_id
            assert branch_span.parent_id == around.span_id
            assert len({span.trace_id for span in (one, other, branch_span, around)}) == 1
            assert find_final_reward([reward]) == number
            for span in (one, other, branch_span):
                assert present(span.start_time) <= present(span.end_time)

    async def test_a_traced_function_that_fails_is_a_failed_span_and_the_error_goes_on(
        self, tracer: Tracer, store: LightningStore
    ) -> None:
        def fail() -> None:
            raise ValueError("no good")

        async def fail_later() -> None:
            await asyncio.sleep(0)
            raise ValueError("no better")

        async with self.traced(tracer, store) as traced:
            with pytest.raises(ValueError, match="no good"):
                self._traced_function(tracer, "fails", fail)()
            with pytest.raises(ValueError, match="no better"):
                await self._traced_function(tracer, "fails_later", fail_later)()
            emit_message("goes on")
        at_once, later, message = await self.ours(traced)
        assert at_once.status.status_code == later.status.status_code == "ERROR"
        assert "no good" in (at_once.status.description or "")
        assert "no better" in (later.status.description or "")
        assert message.parent_id is None

    async def test_a_traced_function_that_is_cancelled_is_stored_and_is_no_success(
        self, tracer: Tracer, store: LightningStore
    ) -> None:
        async def wait() -> None:
            await asyncio.Event().wait()

        waits = self._traced_function(tracer, "waits", wait)
        spans = await self._cancelled_in(tracer, store, "around", waits)
        (waited,) = (span for span in spans if span.name == "waits")
        (around,) = (span for span in spans if span.attributes.get("agentlightning.operation.name") == "around")
        assert waited.status.status_code != "OK"
        assert waited.end_time is not None
        assert waited.parent_id == around.span_id

    async def test_a_traced_function_is_not_recorded_outside_of_traces(
        self, tracer: Tracer, store: LightningStore
    ) -> None:
        double = self._traced_function(tracer, "double", lambda number: 2 * number)
        assert double(2) == 4
        async with self.traced(tracer, store) as traced:
            assert double(3) == 6
        assert double(4) == 8
        assert [span.name for span in await self.ours(traced)] == ["double"]

    async def test_a_traced_function_works_when_the_tracer_is_gone(self, store: LightningStore) -> None:
        tracer = self.make_tracer()
        with tracer.lifespan():
            double = self._traced_function(tracer, "double", lambda number: 2 * number)
            async with self.traced(tracer, store) as traced:
                assert double(3) == 6
        assert double(4) == 8
        assert [span.name for span in await self.ours(traced)] == ["double"]

    async def _cancelled_in(
        self, tracer: Tracer, store: LightningStore, name: str, wait: Callable[[], Any] | None = None
    ) -> list[Span]:
        """Cancel a trace inside of an operation, after a span, where it waits; return what is stored of it."""
        entered: asyncio.Future[Traced] = asyncio.get_running_loop().create_future()

        async def rollout() -> None:
            async with self.traced(tracer, store) as traced:
                tracer.create_span("before")
                with operation(name=name):
                    asyncio.get_running_loop().call_soon(entered.set_result, traced)
                    await (asyncio.Event().wait() if wait is None else wait())

        task = asyncio.create_task(rollout())
        traced = await asyncio.wait_for(entered, PATIENCE_SECONDS)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, PATIENCE_SECONDS)
        return await self.ours(traced)
