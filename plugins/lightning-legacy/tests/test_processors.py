"""Tracers that bring OpenTelemetry's spans to a store by the processor, or the exporter, of agentlightning 0.3."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import openai
import pytest
from lightning_core.instrumentation import instrument_all, uninstrument_all
from lightning_core.utils.otlp import LightningStoreOTLPExporter, spans_from_proto
from lightning_http import LightningStoreServer
from lightning_legacy import processors
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import lightning_core as agl
from lightning_core.tracer.otel import LightningSpanProcessor


class OwnTracer(agl.Tracer):
    def init(self) -> None:
        self.processor = LightningSpanProcessor()
        self.provider = TracerProvider()
        self.provider.add_span_processor(self.processor)

    def teardown(self) -> None:
        self.provider.shutdown()

    @asynccontextmanager
    async def trace_context(self, name: str | None = None, **ids: Any) -> AsyncIterator[Any]:
        with self.processor.with_context(ids["store"], ids["rollout_id"], ids["attempt_id"]) as processor:
            yield processor

    def get_last_trace(self) -> list[agl.Span]:
        return self.processor.spans()


async def test_the_spans_of_a_tracer_with_the_processor_are_stored_as_they_end() -> None:
    tracer, store = OwnTracer(), agl.InMemoryLightningStore()
    seen: list[str] = []

    class Seen(agl.Hook):
        async def on_trace_end(self, *, tracer: agl.Tracer, **_: Any) -> None:
            seen.extend(span.name for span in tracer.get_last_trace())

    @agl.rollout
    def agent(task: str) -> float:
        with tracer.provider.get_tracer("agent").start_as_current_span("work"):
            return 0.5

    runner = agl.LitAgentRunner[str](tracer)
    with runner.run_context(agent=agent, store=store, hooks=[Seen()]):
        rollout = await runner.step("task")
    spans = await store.query_spans(rollout.rollout_id)
    assert [(span.name, span.sequence_id) for span in spans][:1] == [("work", 1)]
    assert (agl.find_final_reward(spans), seen) == (0.5, ["work"])
    assert "otel-loop" not in [thread.name for thread in threading.enumerate()]


async def test_spans_that_no_store_takes_are_kept_by_the_processor() -> None:
    class Broken(agl.InMemoryLightningStore):
        async def add_otel_span(self, *args: Any) -> agl.Span | None:
            raise RuntimeError("the disk is full")

    processor = LightningSpanProcessor()
    provider = TracerProvider()
    provider.add_span_processor(processor)
    tracer = provider.get_tracer("agent")
    tracer.start_span("before").end()
    with processor:
        tracer.start_span("alone").end()
        assert [(span.name, span.rollout_id) for span in processor.spans()] == [("alone", "rollout-dummy")]
    with processor.with_context(Broken(), "ro", "at"):
        tracer.start_span("lost").end()
    assert [(span.name, span.rollout_id) for span in processor.spans()] == [("lost", "ro")]
    provider.shutdown()


async def test_a_span_that_is_stored_late_is_not_one_of_the_next_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    answer, answered = threading.Event(), threading.Event()

    class Slow(agl.InMemoryLightningStore):
        async def add_otel_span(self, *args: Any) -> agl.Span | None:
            await asyncio.to_thread(answer.wait, 20)
            try:
                return await super().add_otel_span(*args)
            finally:
                asyncio.get_running_loop().call_soon(answered.set)

    monkeypatch.setattr(processors, "STORE_WRITE_TIMEOUT_SECONDS", 0.01)
    store, processor, provider = Slow(), LightningSpanProcessor(), TracerProvider()
    provider.add_span_processor(processor)
    first, second = await store.start_rollout("a"), await store.start_rollout("b")
    with processor.with_context(store, first.rollout_id, first.attempt.attempt_id):
        provider.get_tracer("agent").start_span("late").end()
    assert [span.name for span in processor.spans()] == ["late"]
    with processor.with_context(store, second.rollout_id, second.attempt.attempt_id):
        answer.set()
        assert await asyncio.to_thread(answered.wait, 20)
    assert processor.spans() == []
    assert len(await store.query_spans(first.rollout_id)) == 1
    provider.shutdown()


async def test_spans_of_a_request_are_numbered_by_the_store() -> None:
    store, memory = agl.InMemoryLightningStore(), InMemorySpanExporter()
    rollout = await store.start_rollout("a")
    ids = {"agentlightning.rollout_id": rollout.rollout_id, "agentlightning.attempt_id": rollout.attempt.attempt_id}
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(memory))
    tracer = provider.get_tracer("agent")
    for attributes in (ids, {**ids, "agentlightning.span_sequence_id": 77}, ids, {}):
        tracer.start_span("work", attributes=attributes).end()
    spans = await spans_from_proto(encode_spans(memory.get_finished_spans()), store.get_many_span_sequence_ids)
    assert [(span.rollout_id, span.sequence_id) for span in spans] == [(rollout.rollout_id, n) for n in (1, 77, 2)]
    provider.shutdown()


async def test_the_exporter_sends_the_spans_of_an_attempt_to_its_server() -> None:
    store = agl.InMemoryLightningStore()
    exporter = LightningStoreOTLPExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("agent")
    rollout = await store.start_rollout(input="task")
    server = LightningStoreServer(store, launch_mode="thread")
    await server.start()
    try:
        tracer.start_span("before").end()
        exporter.enable_store_otlp(server.otlp_traces_endpoint(), rollout.rollout_id, rollout.attempt.attempt_id)
        tracer.start_span("work").end()
        exporter.disable_store_otlp()
        tracer.start_span("after").end()
    finally:
        provider.shutdown()
        await server.stop()
    assert [span.name for span in await store.query_spans(rollout.rollout_id)] == ["work"]


async def test_instrumentors_are_turned_on_and_off() -> None:
    answer = {"id": "a", "object": "chat.completion", "created": 1, "model": "m", "choices": []}
    http = httpx.Client(transport=httpx.MockTransport(lambda _: httpx.Response(200, json=answer)))
    client = openai.OpenAI(base_url="http://model/v1", api_key="none", http_client=http)
    tracer = agl.OtelTracer(instrument=())
    counts = []
    with tracer.lifespan():
        for change in (instrument_all, instrument_all, uninstrument_all):
            change()
            async with tracer.trace_context() as trace:
                client.chat.completions.create(model="m", messages=[])
            counts.append(len(trace.spans))
    assert counts == [1, 1, 0]
