"""The conformance suite of trace adapters, and traces to try them on."""

import random
import time
from collections.abc import Callable, Mapping, Sequence, Sized
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from lightning_core.adapter import Adapter
from lightning_core.types import Span, TraceStatus

CALLS_OF_THE_LONG_TRACE = 1_000
GROWTH_LIMIT = 30
"""How much longer ten times the calls may take; with the square of them it would be 100 times."""


class TraceBuilder:
    """Makes the spans of one attempt, one after the other: each is a second long and follows the last one."""

    def __init__(self) -> None:
        self.spans: list[Span] = []

    def span(
        self,
        name: str,
        attributes: Mapping[str, Any] | None = None,
        *,
        parent: Span | str | None = None,
        start: float | None = None,
        end: float | None = None,
        error: str | None = None,
        **fields: Any,
    ) -> Span:
        """Add a span.

        Args:
            name: Its name.
            attributes: Its attributes.
            parent: The span that it lies in, or that one's id.
            start: When it begins; None for after the last span.
            end: When it ends; None for a second later.
            error: What went wrong; None for nothing.
            fields: Further fields, as `Span.from_attributes` has them, and `events`.
        """
        number = len(self.spans) + 1
        start = 10.0 * number if start is None else start
        span = Span.from_attributes(
            **{
                "name": name,
                "attributes": dict(attributes or {}),
                "rollout_id": "ro-1",
                "attempt_id": "at-1",
                "sequence_id": number,
                "trace_id": "trace-1",
                "span_id": f"span-{number}",
                "parent_id": parent.span_id if isinstance(parent, Span) else parent,
                "start_time": start,
                "end_time": start + 1.0 if end is None else end,
                "status": TraceStatus(status_code="OK" if error is None else "ERROR", description=error),
                **{name: value for name, value in fields.items() if name != "events"},
            }
        )
        if "events" in fields:
            span = span.model_copy(update={"events": fields["events"]})
        self.spans.append(span)
        return span

    def call(self, prompt: Any = None, response: Any = None, **more: Any) -> Span:
        """Add a chat call as agentlightning 0.3 records it; further arguments are those of `span`."""
        attributes: dict[str, Any] = {
            "gen_ai.request.model": "small",
            "gen_ai.prompt.0.role": "user",
            "gen_ai.prompt.0.content": "What is to be done?",
        }
        if more.get("error") is None:
            attributes["gen_ai.response.id"] = f"chatcmpl-{len(self.spans) + 1}"
            attributes["gen_ai.completion.0.role"] = "assistant"
            attributes["gen_ai.completion.0.content"] = "This."
            attributes["gen_ai.completion.0.finish_reason"] = "stop"
        if prompt is not None:
            attributes["prompt_token_ids"] = prompt
        if response is not None:
            attributes["response_token_ids"] = response
        attributes |= more.pop("attributes", {})
        return self.span("openai.chat.completion", attributes, **more)

    def reward(self, value: float, **more: Any) -> Span:
        """Add a reward; further arguments are those of `span`."""
        attributes = {"agentlightning.reward.0.name": "primary", "agentlightning.reward.0.value": value}
        return self.span("agentlightning.annotation", attributes, **more)


def _one_call() -> list[Span]:
    trace = TraceBuilder()
    trace.call([1, 2], [3])
    trace.reward(1.0)
    return trace.spans


def _conversation() -> list[Span]:
    trace = TraceBuilder()
    root = trace.span("session", start=0.0, end=1000.0)
    trace.call([1], [2, 3], parent=root)
    trace.call([1, 2, 3, 9, 9], [4], parent=root)
    trace.call([1, 2, 3, 9, 9, 4, 8], [5, 6], parent=root)
    trace.reward(0.5, parent=root)
    return trace.spans


def _failures() -> list[Span]:
    trace = TraceBuilder()
    trace.call(error="429 too many requests")
    trace.call([1], [])
    trace.call([1])
    trace.call()
    trace.call([1], [2])
    return trace.spans


def _odd_shapes() -> list[Span]:
    trace = TraceBuilder()
    trace.call([1], [2], parent="lost")
    trace.call((1, 2), (3,), start_time=None, end_time=None)
    trace.call([1], [[2], [3]])
    trace.call(["a"], [2])
    trace.call([1], "nonsense", attributes={"logprobs.content": "["})
    trace.span("circle-a", parent="circle-b", span_id="circle-a")
    trace.span("circle-b", parent="circle-a", span_id="circle-b")
    return trace.spans


def _recorded_twice() -> list[Span]:
    trace = TraceBuilder()
    outer = trace.call(attributes={"gen_ai.response.id": "chatcmpl-1"}, start=10.0, end=19.0)
    trace.call([1, 2], [3], attributes={"gen_ai.response.id": "chatcmpl-1"}, parent=outer, start=11.0, end=18.0)
    trace.reward(1.0)
    return trace.spans


SAMPLE_TRACES: Mapping[str, Callable[[], list[Span]]] = {
    "one call": _one_call,
    "a conversation": _conversation,
    "failures": _failures,
    "odd shapes": _odd_shapes,
    "a call recorded twice": _recorded_twice,
}
"""By name, how to make the spans of an attempt of that kind."""


def _long_trace(calls: int) -> list[Span]:
    trace = TraceBuilder()
    root = trace.span("session", start=0.0, end=1e6)
    for number in range(calls):
        trace.call([number, 1, 2], [3, 4], parent=root)
        trace.reward(0.5, parent=root)
    return trace.spans


class AdapterSuite:
    """Proves that an adapter of traces keeps the promises of `Adapter`.

    Subclass it in a test file, and say how to make the adapter:

        from lightning_core.testing import AdapterSuite
        from my_package import MyAdapter


        class TestMyAdapter(AdapterSuite):
            def make_adapter(self):
                return MyAdapter()

    Results are compared with `==`. Where one of your results is not a list with an entry a model call, override
    `count_calls`, or return None from it, and the tests that count are skipped.
    """

    def make_adapter(self) -> Adapter[Sequence[Span], Any]:
        """Return the adapter."""
        raise NotImplementedError("override make_adapter: return an adapter")

    def count_calls(self, result: Any) -> int | None:
        """Return how many model calls a result has; None where that cannot be told."""
        return len(result) if isinstance(result, Sized) else None

    @pytest.mark.parametrize("kind", SAMPLE_TRACES)
    def test_the_spans_are_not_changed(self, kind: str) -> None:
        spans = SAMPLE_TRACES[kind]()
        before = [span.model_copy(deep=True) for span in spans]
        self.make_adapter().adapt(spans)
        assert spans == before

    @pytest.mark.parametrize("kind", SAMPLE_TRACES)
    def test_the_same_spans_give_the_same_result(self, kind: str) -> None:
        spans = SAMPLE_TRACES[kind]()
        adapter = self.make_adapter()
        first = adapter.adapt(spans)
        adapter.adapt(_one_call())
        assert adapter.adapt(spans) == first
        assert self.make_adapter()(spans) == first

    @pytest.mark.parametrize("kind", SAMPLE_TRACES)
    def test_the_order_in_which_the_spans_are_given_does_not_matter(self, kind: str) -> None:
        spans = SAMPLE_TRACES[kind]()
        shuffled = random.Random(0).sample(spans, len(spans))
        assert self.make_adapter().adapt(tuple(shuffled)) == self.make_adapter().adapt(spans)

    def test_an_attempt_without_a_model_call_gives_none(self) -> None:
        trace = TraceBuilder()
        trace.reward(1.0)
        for spans in ([], trace.spans):
            result = self.make_adapter().adapt(spans)
            assert self.count_calls(result) in (0, None)

    def test_a_call_that_two_sources_recorded_counts_once(self) -> None:
        counted = self.count_calls(self.make_adapter().adapt(_recorded_twice()))
        if counted is None:
            pytest.skip("count_calls returns None for this adapter")
        assert counted == 1

    def test_one_adapter_serves_several_threads(self) -> None:
        adapter = self.make_adapter()
        traces = [SAMPLE_TRACES[kind]() for kind in SAMPLE_TRACES] * 4
        with ThreadPoolExecutor(4) as threads:
            together = list(threads.map(adapter.adapt, traces))
        assert together == [adapter.adapt(spans) for spans in traces]

    def test_the_cost_does_not_grow_with_the_square_of_the_calls(self) -> None:
        adapter = self.make_adapter()
        short, long = _long_trace(CALLS_OF_THE_LONG_TRACE // 10), _long_trace(CALLS_OF_THE_LONG_TRACE)
        assert _cpu_seconds(adapter, long) < GROWTH_LIMIT * _cpu_seconds(adapter, short)


def _cpu_seconds(adapter: Adapter[Sequence[Span], Any], spans: list[Span]) -> float:
    times = []
    for _ in range(3):
        began = time.process_time()
        adapter.adapt(spans)
        times.append(time.process_time() - began)
    return min(times)
