import asyncio
import pickle
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from opentelemetry import trace as otel
from opentelemetry.context import Context, attach, detach
from opentelemetry.sdk.trace import TracerProvider

from lightning_core.emitter import emit_message, emit_reward, find_final_reward, find_reward_spans
from lightning_core.errors import NoActiveTracer, TracerError
from lightning_core.tracer import OtelTracer, Trace

if TYPE_CHECKING:
    from tests.tracer.conftest import RecordingStore


def names(trace: Trace) -> list[str]:
    return [span.name for span in trace.spans]


async def test_each_of_200_concurrent_traces_has_exactly_its_own_spans(
    tracer: OtelTracer, store: "RecordingStore"
) -> None:
    library = tracer.provider.get_tracer("a library")

    def emit(number: int, place: str) -> None:
        with library.start_as_current_span(f"{number}-{place}"):
            emit_reward({place: float(number)})

    async def rollout(number: int, pool: ThreadPoolExecutor) -> Trace:
        async with tracer.trace_context(store=store, rollout_id=f"ro-{number}", attempt_id=f"at-{number}") as trace:
            emit(number, "start")
            await asyncio.sleep(0)
            thread = threading.Thread(target=emit, args=(number, "thread"))
            thread.start()
            in_pool = pool.submit(emit, number, "pool")
            await asyncio.gather(
                asyncio.to_thread(emit, number, "to_thread"),
                asyncio.get_running_loop().run_in_executor(pool, emit, number, "executor"),
                asyncio.wrap_future(in_pool),
            )
            await asyncio.to_thread(thread.join, 30)
            with library.start_as_current_span(f"{number}-across awaits"):
                await asyncio.sleep(0)
                emit_reward({"inside": float(number)})
                await asyncio.sleep(0)
            emit_reward(float(number))
        return trace

    with ThreadPoolExecutor(max_workers=8) as pool:
        traces = await asyncio.gather(*(rollout(number, pool) for number in range(200)))

    places = ["start", "thread", "pool", "to_thread", "executor"]
    for number, trace in enumerate(traces):
        spans = store.attempts[f"at-{number}"]
        assert trace.spans == spans
        assert trace.dropped == 0
        rewards = find_reward_spans(spans)
        assert {span.attributes["agentlightning.reward.0.value"] for span in rewards} == {float(number)}
        assert sorted(span.attributes["agentlightning.reward.0.name"] for span in rewards) == sorted(
            [*places, "inside", "primary"]
        )
        others = [span.name for span in spans if span not in rewards]
        assert sorted(others) == sorted(f"{number}-{place}" for place in [*places, "across awaits"])
        assert find_final_reward(spans) == float(number)
        assert {span.rollout_id for span in spans} == {f"ro-{number}"}
        assert [span.sequence_id for span in spans] == list(range(1, 14))
        own_ids = {span.span_id for span in spans}
        assert all(span.parent_id is None or span.parent_id in own_ids for span in spans)


async def test_timer_of_an_agent_belongs_to_its_trace(tracer: OtelTracer) -> None:
    async with tracer.trace_context() as trace:
        timer = threading.Timer(0, emit_message, ["from a timer"])
        timer.start()
        await asyncio.to_thread(timer.join, 30)
    assert len(trace.spans) == 1


async def test_span_belongs_to_the_trace_where_it_started(tracer: OtelTracer) -> None:
    library = tracer.provider.get_tracer("a library")
    async with tracer.trace_context() as first:
        span = library.start_span("begun in the first")
        async with tracer.trace_context() as second:
            span.end()
    assert names(first) == ["begun in the first"]
    assert names(second) == []


async def test_span_with_an_explicit_context_follows_that_context(tracer: OtelTracer) -> None:
    library = tracer.provider.get_tracer("a library")
    async with tracer.trace_context() as first:
        parent = library.start_span("parent")
    parent_alone = otel.set_span_in_context(parent, Context())
    async with tracer.trace_context() as second:
        library.start_span("child of the first", context=parent_alone).end()
        library.start_span("of nobody in particular", context=Context()).end()
    assert first.dropped == 1
    assert names(second) == ["of nobody in particular"]

    async with tracer.trace_context() as third:
        parent = library.start_span("parent")
        token = attach(otel.set_span_in_context(parent, Context()))
        library.start_span("child of the third").end()
        detach(token)
    assert names(third) == ["child of the third"]


async def test_last_trace_is_that_of_the_calling_context(tracer: OtelTracer) -> None:
    assert tracer.get_last_trace() == []

    async def rollout(number: int) -> list[str]:
        async with tracer.trace_context():
            tracer.create_span(f"span {number}")
            await asyncio.sleep(0)
            assert len(tracer.get_last_trace()) == 1
            assert len(await asyncio.get_running_loop().run_in_executor(None, tracer.get_last_trace)) == 1
        await asyncio.sleep(0)
        return [span.name for span in tracer.get_last_trace()]

    results = await asyncio.gather(*(rollout(number) for number in range(5)))
    assert results == [[f"span {number}"] for number in range(5)]
    assert tracer.get_last_trace() == []


async def test_created_span_starts_and_ends_at_its_timestamp(tracer: OtelTracer) -> None:
    async with tracer.trace_context() as trace:
        created = tracer.create_span("s", {"a": 1})
        tracer.create_span("at the epoch", timestamp=0.0)
    first, epoch = trace.spans
    assert (first.name, first.attributes) == (created.name, created.attributes)
    assert first.start_time == first.end_time == created.start_time == created.end_time is not None
    assert epoch.start_time == epoch.end_time == 0.0


async def test_attributes_survive_whatever_they_are_and_however_many(tracer: OtelTracer) -> None:
    attributes = {"none": None, "list": [1, "a", None], "map": {"k": None}, "text": "x" * 100_000}
    attributes |= {f"a{number}": number for number in range(500)}
    async with tracer.trace_context() as trace:
        tracer.create_span("s", attributes)
        emit_message("m", attributes={"none": None})
    recorded = trace.spans[0].attributes
    assert recorded.pop("list") == (1, "a", None)
    del attributes["list"]
    assert recorded == attributes
    assert trace.spans[1].attributes["none"] is None


async def test_span_that_cannot_be_read_is_counted_and_the_agent_goes_on(
    tracer: OtelTracer, caplog: pytest.LogCaptureFixture
) -> None:
    async with tracer.trace_context() as trace:
        span = tracer.provider.get_tracer("a library").start_span("s")
        span.update_name(5)  # type: ignore[arg-type]
        span.end()
    assert trace.spans == []
    assert trace.dropped == 1
    assert [record.getMessage().split()[0] for record in caplog.records] == ["lightning.unreadable_span_dropped"]


async def test_agents_that_seed_the_random_module_still_get_unique_ids(tracer: OtelTracer) -> None:
    async def rollout() -> Trace:
        async with tracer.trace_context() as trace:
            for _ in range(3):
                random.seed(0)
                tracer.create_span("s")
                await asyncio.sleep(0)
        return trace

    traces = await asyncio.gather(rollout(), rollout())
    spans = [span for trace in traces for span in trace.spans]
    assert len({span.span_id for span in spans}) == len({span.trace_id for span in spans}) == 6
    assert [len(trace.spans) for trace in traces] == [3, 3]


async def test_environment_does_not_sample_or_cut_traces(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    monkeypatch.setenv("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "1")
    monkeypatch.setenv("OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT", "2")
    tracer = OtelTracer()
    with tracer.lifespan():
        async with tracer.trace_context() as trace:
            tracer.create_span("s", {"a": "long", "b": "longer"})
    assert trace.spans[0].attributes == {"a": "long", "b": "longer"}


async def test_switched_off_sdk_is_an_error_and_not_an_empty_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    with pytest.raises(TracerError, match="OTEL_SDK_DISABLED is set, so no span would be recorded; unset it"):
        OtelTracer().init()


async def test_span_that_is_current_around_a_trace_is_no_parent_in_it(tracer: OtelTracer) -> None:
    application = TracerProvider(shutdown_on_exit=False).get_tracer("an application")
    with application.start_as_current_span("around") as around:
        async with tracer.trace_context() as trace:
            tracer.create_span("s")
        assert otel.get_current_span() is around
    assert trace.spans[0].parent_id is None


async def test_spans_outside_of_a_trace_are_refused_or_ignored(tracer: OtelTracer) -> None:
    with pytest.raises(NoActiveTracer, match="span 's' was created outside of a trace of this tracer; enter"):
        tracer.create_span("s")
    tracer.provider.get_tracer("a library").start_span("s").end()
    assert tracer.get_last_trace() == []


async def test_ids_need_a_store(tracer: OtelTracer) -> None:
    with pytest.raises(ValueError, match="spans of attempt 'at-1' have no store to go to; pass store="):
        async with tracer.trace_context(rollout_id="ro-1", attempt_id="at-1"):
            pass


def test_tracer_can_be_sent_to_another_process_before_it_is_initialised() -> None:
    tracer = pickle.loads(pickle.dumps(OtelTracer(store_timeout_seconds=5)))
    with tracer.lifespan():
        assert tracer.provider is not None
