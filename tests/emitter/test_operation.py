import asyncio
from collections.abc import AsyncGenerator, Generator
from dataclasses import dataclass
from typing import Any

import pytest

from lightning_core.emitter import emit_message, operation
from lightning_core.errors import NoActiveTracer
from lightning_core.semconv import AGL_OPERATION
from lightning_core.tracer import OtelTracer, Trace
from lightning_core.types import LLM, Span

NAME = "agentlightning.operation.name"
INPUT = "agentlightning.operation.input"
OUTPUT = "agentlightning.operation.output"


def the_operation(trace: Trace) -> Span:
    (found,) = (span for span in trace.spans if span.name == AGL_OPERATION)
    return found


def test_block_records_input_output_and_name() -> None:
    with operation(name="search", propagate=False, kind="tool", more={"depth": 2}) as op:
        op.set_input("first", query={"text": "x"}, limit=[1, 2])
        op.set_output({"hits": ["a"]})
    span = op.span()
    assert span.name == AGL_OPERATION
    assert span.status.status_code == "OK"
    assert span.attributes == {
        NAME: "search",
        "kind": "tool",
        "more.depth": 2,
        f"{INPUT}.args.0": "first",
        f"{INPUT}.query.text": "x",
        f"{INPUT}.limit": [1, 2],
        f"{OUTPUT}.hits": ["a"],
    }
    assert span.start_time is not None
    assert span.end_time is not None
    assert span.start_time <= span.end_time


def test_the_model_that_an_agent_is_given_is_recorded_without_its_key() -> None:
    llm = LLM(endpoint="http://127.0.0.1:1/v1", model="small", api_key="agl-at-0123456789ab.cd")
    with operation(propagate=False) as op:
        op.set_input(llm=llm, headers={"Authorization": "Bearer x"}, said=["the key is agl-at-0123456789ab.cd!"])
        op.set_output({"key": "a word", "password": ""})
    recorded = op.span().attributes
    assert recorded[f"{INPUT}.llm.model"] == "small"
    assert recorded[f"{INPUT}.llm.api_key"] == recorded[f"{INPUT}.headers.Authorization"] == "***"
    assert recorded[f"{INPUT}.said"] == ["the key is agl-at-***!"]
    assert (recorded[f"{OUTPUT}.key"], recorded[f"{OUTPUT}.password"]) == ("a word", "")


def test_block_that_raises_is_a_failed_span() -> None:
    op = operation(propagate=False)
    with pytest.raises(ValueError, match="no good"), op:
        raise ValueError("no good")
    assert op.span().status.status_code == "ERROR"
    assert op.span().status.description == "no good"
    assert op.span().attributes["exception.type"] == "ValueError"


def test_block_is_used_by_one_at_a_time_and_in_its_order() -> None:
    op = operation(propagate=False)
    with pytest.raises(RuntimeError, match="the operation is not open; record its input and output inside"):
        op.set_input(1)
    with pytest.raises(RuntimeError, match="the span is not ready"):
        op.span()
    with op, pytest.raises(RuntimeError, match="this operation is open already; call operation"):
        op.__enter__()
    with pytest.raises(RuntimeError, match="not open"):
        op.set_output(1)
    with op:
        op.set_output("again")
    assert op.span().attributes == {OUTPUT: "again"}


def test_wrong_use_says_what_is_right() -> None:
    with pytest.raises(TypeError, match=r"operation decorates a function, got 'search'; .* name='search'"):
        operation("search")  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="the operation's name is given twice"):
        operation(name="a", **{NAME: "b"})
    with pytest.raises(NoActiveTracer, match="operation found no active tracer"), operation():
        pass


def test_decorated_function_needs_a_tracer_when_it_is_called_only() -> None:
    @operation
    def double(number: int) -> int:
        return 2 * number

    with pytest.raises(NoActiveTracer, match="operation found no active tracer"):
        double(2)


async def test_decorated_function_records_arguments_by_name_and_its_result(tracer: OtelTracer) -> None:
    class Tool:
        @operation
        def run(self, query: str, *words: str, limit: int = 3, **options: Any) -> dict[str, Any]:
            """Search."""
            emit_message("inside")
            return {"query": query, "words": list(words)}

    async with tracer.trace_context() as trace:
        assert Tool().run("q", "a", "b", deep={"x": None}) == {"query": "q", "words": ["a", "b"]}
    around = the_operation(trace)
    assert {name: value for name, value in around.attributes.items() if name != OUTPUT} == {
        NAME: "run",
        f"{INPUT}.query": "q",
        f"{INPUT}.words.0": "a",
        f"{INPUT}.words.1": "b",
        f"{INPUT}.limit": 3,
        f"{INPUT}.options.deep.x": None,
        f"{OUTPUT}.query": "q",
        f"{OUTPUT}.words": ("a", "b"),
    }
    assert trace.spans[0].parent_id == around.span_id
    assert (Tool.run.__name__, Tool.run.__doc__) == ("run", "Search.")


async def test_many_calls_at_once_have_a_span_each(tracer: OtelTracer) -> None:
    @operation
    async def work(number: int) -> int:
        emit_message(f"in {number}")
        await asyncio.sleep(0)
        return number

    async with tracer.trace_context() as trace:
        await asyncio.gather(*(work(number) for number in range(10)))
    around = {span.span_id: span for span in trace.spans if span.name == AGL_OPERATION}
    assert sorted(span.attributes[OUTPUT] for span in around.values()) == list(range(10))
    for message in (span for span in trace.spans if span.name != AGL_OPERATION):
        number = around[message.parent_id or ""].attributes[f"{INPUT}.number"]
        assert message.attributes["agentlightning.message.body"] == f"in {number}"


def test_generator_is_refused_with_what_to_do_instead() -> None:
    def count() -> Generator[int, None, None]:
        yield 1

    async def count_async() -> AsyncGenerator[int, None]:
        yield 1

    for generator in (count, count_async):
        with pytest.raises(TypeError, match=r"cannot decorate the generator .*count.*; write `with operation\(\):`"):
            operation(generator)


def test_any_python_value_can_be_input_and_output() -> None:
    @dataclass
    class Point:
        x: int

    class Hostile:
        def __str__(self) -> str:
            raise ZeroDivisionError

    loop: list[Any] = [1]
    loop.append(loop)
    with operation(propagate=False) as op:
        op.set_input(Point(1), Hostile(), {1: {2}}, loop, b"x")
        op.set_output((1, "a", None))
    attributes = op.span().attributes
    assert attributes[f"{INPUT}.args.0.x"] == 1
    assert attributes[f"{INPUT}.args.1"] == "<no text: str() raised ZeroDivisionError>"
    assert attributes[f"{INPUT}.args.2.1"] == "{2}"
    assert attributes[f"{INPUT}.args.3.0"] == 1
    assert attributes[f"{INPUT}.args.4"] == "eA=="
    assert [attributes[f"{OUTPUT}.{place}"] for place in range(3)] == [1, "a", None]


def test_call_that_does_not_fit_the_signature_raises_its_own_error() -> None:
    @operation(propagate=False)
    def one(a: int) -> int:
        return a

    with pytest.raises(TypeError, match="takes 1 positional argument but 2 were given"):
        one(1, 2)  # type: ignore[call-arg]


def test_function_whose_parameters_nobody_knows_can_be_decorated() -> None:
    assert operation(max, propagate=False)(3, 5) == 5
