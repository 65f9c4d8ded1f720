"""What becomes of calls: names, inputs, outputs, errors, times, and the spans around them."""

import asyncio
import dataclasses
import random
import threading
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
import weave
from lightning_weave import WeaveTracer
from opentelemetry import trace as otel
from pydantic import BaseModel

from lightning_core.emitter import emit_message, operation
from lightning_core.store import InMemoryLightningStore
from lightning_core.tracer import Trace
from lightning_core.types import Span

INPUT, OUTPUT = "agentlightning.operation.input", "agentlightning.operation.output"


# weave 0.54 looks fields up in the way of pydantic before 2.11.
WEAVE_IS_OLDER = pytest.mark.filterwarnings("ignore:Accessing the 'model_fields' attribute")


def by_name(trace: Trace) -> dict[str, Span]:
    found = {span.name: span for span in trace.spans}
    assert len(found) == len(trace.spans)
    return found


class Point(BaseModel):
    x: int
    tags: list[str]


@dataclasses.dataclass
class Box:
    point: Point
    note: str | None


@weave.op
def move(point: Point, by: int, *, options: dict[str, Any] | None = None, where: Any = None) -> Box:
    return Box(Point(x=point.x + by, tags=point.tags), None)


@weave.op
def secretive(question: str, api_key: str, client: dict[str, str]) -> str:
    return question


async def test_a_call_has_what_went_in_and_what_came_out(tracer: WeaveTracer) -> None:
    async with tracer.trace_context() as trace:
        assert move(Point(x=1, tags=["a", "b"]), 2, options={"deep": [{"k": None}]}).point.x == 3
    span = by_name(trace)["move"]
    attributes = span.attributes
    assert attributes["agentlightning.operation.name"] == "move"
    assert (attributes[f"{INPUT}.point.x"], attributes[f"{INPUT}.by"]) == (1, 2)
    assert list(attributes[f"{INPUT}.point.tags"]) == ["a", "b"]
    assert attributes[f"{INPUT}.options.deep.0.k"] is None
    assert attributes[f"{OUTPUT}.point.x"] == 3
    assert attributes[f"{OUTPUT}.note"] is None
    assert span.status.status_code == "OK"
    assert attributes["weave.call_id"]


async def test_spans_of_an_attempt_name_their_tracer(tracer: WeaveTracer, store: InMemoryLightningStore) -> None:
    attempt = (await store.start_rollout("task")).attempt
    async with tracer.trace_context(store=store, rollout_id=attempt.rollout_id, attempt_id=attempt.attempt_id) as trace:
        secretive("q", api_key="", client={})
    (span,) = trace.spans
    assert span.resource.attributes["agentlightning.tracer.name"] == "weave"


async def test_keys_are_not_recorded(tracer: WeaveTracer) -> None:
    async with tracer.trace_context() as trace:
        secretive("q", api_key="sk-1234567890", client={"api_key": "sk-1234567890", "kind": "c"})
    (span,) = trace.spans
    assert "sk-1234567890" not in str(span.attributes)
    assert (span.attributes[f"{INPUT}.question"], span.attributes[f"{INPUT}.client.kind"]) == ("q", "c")


async def test_none_and_nothing_are_outputs(tracer: WeaveTracer) -> None:
    async with tracer.trace_context() as trace:
        weave.op(lambda: None, name="none")()
        weave.op(list, name="nothing")()
        weave.op(lambda: 0.5, name="number")()
    spans = by_name(trace)
    assert OUTPUT not in spans["none"].attributes
    assert list(spans["nothing"].attributes[OUTPUT]) == []
    assert spans["number"].attributes[OUTPUT] == 0.5


async def test_attributes_kind_and_display_name_are_kept(tracer: WeaveTracer) -> None:
    tool = weave.op(lambda: 1, name="tool", kind="tool", call_display_name="My tool")
    async with tracer.trace_context() as trace:
        with weave.attributes({"stage": {"name": "first"}}):
            tool()
    (span,) = trace.spans
    assert span.attributes["weave.attributes.stage.name"] == "first"
    assert (span.attributes["weave.kind"], span.attributes["weave.display_name"]) == ("tool", "My tool")
    assert not [name for name in span.attributes if "version" in name]


async def test_an_error_is_told_with_its_type_and_traceback(tracer: WeaveTracer) -> None:
    def fail() -> None:
        raise KeyError("gone")

    async with tracer.trace_context() as trace:
        with pytest.raises(KeyError):
            weave.op(fail)()
    (span,) = trace.spans
    assert span.status.status_code == "ERROR"
    assert "gone" in (span.status.description or "")
    (event,) = span.events
    assert (event.name, event.attributes["exception.type"]) == ("exception", "KeyError")
    assert ", in fail\n    raise KeyError" in event.attributes["exception.stacktrace"]


async def test_times_are_those_of_the_call(tracer: WeaveTracer) -> None:
    async with tracer.trace_context() as trace:
        before = datetime.now(UTC).timestamp()
        weave.op(lambda: 1, name="call")()
        after = datetime.now(UTC).timestamp()
    (span,) = trace.spans
    assert span.start_time is not None
    assert span.end_time is not None
    assert before - 1e-6 <= span.start_time <= span.end_time <= after + 1e-6


async def test_calls_operations_and_foreign_spans_nest_in_each_other(tracer: WeaveTracer) -> None:
    def inner() -> None:
        emit_message("deep")

    def outer() -> None:
        with operation(name="op"), otel.get_tracer("app").start_as_current_span("foreign"):
            weave.op(inner)()
        emit_message("shallow")

    async with tracer.trace_context() as trace:
        weave.op(outer)()
        emit_message("outside")
    deep, inside, foreign, op, shallow, whole, outside = trace.spans
    assert [inside.name, foreign.name, whole.name] == ["inner", "foreign", "outer"]
    assert deep.parent_id == inside.span_id
    assert inside.parent_id == foreign.span_id
    assert foreign.parent_id == op.span_id
    assert op.parent_id == shallow.parent_id == whole.span_id
    assert whole.parent_id is outside.parent_id is None


async def test_a_generator_is_one_span_and_is_entered_at_each_step(tracer: WeaveTracer) -> None:
    def count(upto: int) -> Iterator[int]:
        for number in range(upto):
            emit_message(f"inside {number}")
            yield number

    async def count_later(upto: int) -> AsyncIterator[int]:
        for number in range(upto):
            emit_message(f"inside {number}")
            yield number

    async with tracer.trace_context() as trace:
        for _ in weave.op(count, accumulator=lambda all, one: [*(all or []), one])(2):
            emit_message("between")
        emit_message("after")
        async for _ in weave.op(count_later, accumulator=lambda all, one: [*(all or []), one])(2):
            emit_message("between")
    spans = trace.spans
    for name in ("count", "count_later"):
        (whole,) = (span for span in spans if span.name == name)
        assert list(whole.attributes[OUTPUT]) == [0, 1]
        assert len([span for span in spans if span.parent_id == whole.span_id]) == 2
    assert len([span for span in spans if span.parent_id is None]) == 2 + 2 + 1 + 2


async def test_a_generator_that_is_left_early_has_what_came(tracer: WeaveTracer) -> None:
    def count() -> Iterator[int]:
        yield 1
        yield 2

    async with tracer.trace_context() as trace:
        numbers = weave.op(count, accumulator=lambda all, one: [*(all or []), one])()
        next(numbers)
        numbers.close()
        emit_message("after")
    spans = {span.name: span for span in trace.spans}
    assert list(spans["count"].attributes[OUTPUT]) == [1]
    assert spans["agentlightning.message"].parent_id is None


async def test_a_call_that_runs_on_when_the_trace_is_left_is_told_of_and_ends_in_peace(tracer: WeaveTracer) -> None:
    began, late = threading.Event(), threading.Event()

    def work() -> None:
        began.set()
        late.wait(20)

    async with tracer.trace_context() as trace:
        thread = threading.Thread(target=weave.op(work))
        thread.start()
        assert await asyncio.to_thread(began.wait, 20)
    late.set()
    await asyncio.to_thread(thread.join, 20)
    (span,) = trace.spans
    assert (span.name, span.status.status_code) == ("work", "ERROR")
    assert "had not ended" in (span.status.description or "")


async def test_a_thread_of_a_call_is_in_it(tracer: WeaveTracer) -> None:
    def work() -> None:
        thread = threading.Thread(target=weave.op(lambda: 1, name="in_thread"))
        thread.start()
        thread.join(20)

    async with tracer.trace_context() as trace:
        weave.op(work)()
    spans = by_name(trace)
    assert spans["in_thread"].parent_id == spans["work"].span_id


@WEAVE_IS_OLDER
async def test_a_method_of_a_model_is_recorded(tracer: WeaveTracer) -> None:
    class Echo(weave.Model):
        word: str

        @weave.op
        def predict(self, times: int) -> str:
            return self.word * times

    async with tracer.trace_context() as trace:
        assert Echo(word="a").predict(3) == "aaa"
    (span,) = trace.spans
    assert (span.name, span.attributes[f"{INPUT}.times"], span.attributes[OUTPUT]) == ("Echo.predict", 3, "aaa")


async def test_an_op_that_is_sampled_away_is_not_recorded(tracer: WeaveTracer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random, "random", lambda: 0.5)
    async with tracer.trace_context() as trace:
        weave.op(lambda: 1, name="rare", tracing_sample_rate=0.1)()
        weave.op(lambda: 1, name="often", tracing_sample_rate=0.9)()
    assert list(by_name(trace)) == ["often"]


async def test_what_only_the_service_can_answer_is_refused_with_the_reason(tracer: WeaveTracer) -> None:
    client = weave.get_client()
    assert client is not None
    with pytest.raises(Exception, match=r"'call_read'.*works offline; leave"):
        client.server.call_read({"project_id": "local/lightning", "id": "x"})
    with pytest.raises(AttributeError, match="no attribute 'call_processor'"):
        _ = client.server.call_processor  # type: ignore[attr-defined]


@WEAVE_IS_OLDER
async def test_objects_tables_and_feedback_need_no_service(tracer: WeaveTracer) -> None:
    async with tracer.trace_context() as trace:
        reference = weave.publish({"prompt": "Be brief."}, name="prompt")
        dataset = weave.Dataset(name="tasks", rows=[{"q": 1}, {"q": 2}])
        weave.publish(dataset)
        _, call = weave.op(lambda: 1, name="op").call()
        call.feedback.add("rating", {"stars": 5})
    assert reference.digest
    assert list(by_name(trace)) == ["op"]
