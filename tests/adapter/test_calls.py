"""Each call once, also where several sources recorded it."""

import pytest

from lightning_core.adapter import ModelCall, read_model_calls
from lightning_core.testing.adapter import TraceBuilder
from lightning_core.types import OtelResource, Span


def called(trace: TraceBuilder) -> list[ModelCall]:
    return read_model_calls(trace.spans)


def bare(trace: TraceBuilder, id: str | None = None, tokens: bool = False, **more) -> Span:
    """Add a chat span with an id or without one, with tokens or without."""
    attributes: dict = {"gen_ai.operation.name": "chat"}
    if id is not None:
        attributes["gen_ai.response.id"] = id
    if tokens:
        attributes |= {"prompt_token_ids": [1], "response_token_ids": [2]}
    return trace.span("chat", attributes, **more)


def ids(calls: list[ModelCall]) -> list[list[str]]:
    return [[span.span_id for span in call.spans] for call in calls]


def test_one_response_id_is_one_call_and_its_tokens_are_those_of_the_source_that_has_them():
    trace = TraceBuilder()
    trace.call(attributes={"gen_ai.response.id": "a"})
    bare(trace, "a", tokens=True)
    (call,) = called(trace)
    assert ids([call]) == [["span-2", "span-1"]]
    assert call.prompt_token_ids == [1]
    assert [message["content"] for message in call.messages] == ["What is to be done?"]


def by_proxy(trace, id, token, **more):
    attributes = {"gen_ai.operation.name": "chat", "gen_ai.response.id": id}
    tokens = {"prompt_token_ids": [0], "response_token_ids": [token]}
    resource = OtelResource(attributes={"service.name": "lightning-proxy"})
    return trace.span("chat", {**attributes, **tokens}, resource=resource, **more)


def test_a_server_that_gives_all_answers_the_same_id_has_answered_as_often_as_the_proxy_has_recorded():
    trace = TraceBuilder()
    for token in (1, 2, 3):
        by_proxy(trace, "constant", token)
    assert [call.response_token_ids for call in called(trace)] == [[1], [2], [3]]


@pytest.mark.parametrize("lies_within", [False, True])
@pytest.mark.parametrize("instrumentors", [1, 2])
def test_calls_of_one_id_that_an_instrumentor_recorded_too_count_once_each(instrumentors, lies_within):
    trace = TraceBuilder()
    for token in (1, 2):
        around = [bare(trace, "constant") for _ in range(instrumentors)]
        by_proxy(trace, "constant", token, parent=around[-1] if lies_within else None)
    calls = called(trace)
    assert [call.response_token_ids for call in calls] == [[1], [2]]
    assert [len(call.spans) for call in calls] == [instrumentors + 1] * 2
    assert ids(calls)[1][0] == f"span-{2 * instrumentors + 2}"


def test_a_span_around_several_calls_of_one_id_that_the_proxy_recorded_is_the_last_one():
    trace = TraceBuilder()
    around = bare(trace, "constant")
    by_proxy(trace, "constant", 1, parent=around)
    by_proxy(trace, "constant", 2, parent=around)
    assert ids(called(trace)) == [["span-2"], ["span-3", "span-1"]]


def test_identical_calls_with_ids_of_their_own_are_calls_of_their_own():
    trace = TraceBuilder()
    trace.call([1], [2])
    trace.call([1], [2])
    assert ids(called(trace)) == [["span-1"], ["span-2"]]


@pytest.mark.parametrize(("outer", "inner"), [("a", None), (None, "a"), (None, None), ("a", "a")])
def test_a_call_span_within_another_is_the_same_call_unless_their_ids_differ(outer, inner):
    trace = TraceBuilder()
    around = bare(trace, outer)
    between = trace.span("http", parent=around)
    bare(trace, inner, tokens=True, parent=between)
    assert ids(called(trace)) == [["span-3", "span-1"]]


def test_a_call_within_another_with_an_id_of_its_own_is_another_call():
    trace = TraceBuilder()
    bare(trace, "b", parent=bare(trace, "a"))
    assert ids(called(trace)) == [["span-1"], ["span-2"]]


def test_a_span_around_several_calls_is_the_last_one():
    trace = TraceBuilder()
    around = bare(trace)
    bare(trace, "a", parent=around)
    bare(trace, "b", parent=around)
    assert ids(called(trace)) == [["span-1", "span-3"], ["span-2"]]


def test_a_failed_try_within_a_call_that_went_well_is_a_call_of_its_own():
    trace = TraceBuilder()
    around = bare(trace, "a")
    bare(trace, parent=around, error="503")
    bare(trace, "a", parent=around, tokens=True)
    calls = called(trace)
    assert [(call.span_id, call.error) for call in calls] == [("span-2", "503"), ("span-3", None)]


def test_calls_are_in_the_order_of_the_attempt_whatever_the_clocks_say():
    trace = TraceBuilder()
    trace.call([1], [2], start=100.0)
    trace.call([3], [4], start=5.0)
    calls = read_model_calls(trace.spans[::-1])
    assert [(call.order, call.sequence_id, call.prompt_token_ids) for call in calls] == [(0, 1, [1]), (1, 2, [3])]


def test_a_failed_call_has_no_choice_and_says_why():
    trace = TraceBuilder()
    trace.call(error="429 too many requests")
    trace.span("chat", {"gen_ai.operation.name": "chat", "error.type": "timeout"})
    assert [(call.error, call.choices) for call in called(trace)] == [("429 too many requests", ()), ("timeout", ())]


def test_a_call_without_tokens_says_so_and_an_empty_answer_is_not_that():
    trace = TraceBuilder()
    trace.call()
    trace.call([1], [])
    first, second = called(trace)
    assert (first.prompt_token_ids, first.response_token_ids) == (None, None)
    assert (second.prompt_token_ids, second.response_token_ids) == ([1], [])


def test_every_choice_has_its_tokens_log_probabilities_and_end():
    trace = TraceBuilder()
    trace.call(
        [1],
        [[2], [3, 4]],
        attributes={
            "response_logprobs": [[-0.5], [-0.25, -1.0]],
            "gen_ai.completion.1.content": "That.",
            "gen_ai.completion.1.finish_reason": "length",
        },
    )
    (call,) = called(trace)
    assert [tuple(choice) for choice in call.choices] == [([2], [-0.5], "stop"), ([3, 4], [-0.25, -1.0], "length")]
    assert [answer["content"] for answer in call.answers] == ["This.", "That."]


def test_the_same_span_given_twice_is_one():
    trace = TraceBuilder()
    trace.call([1], [2])
    assert len(read_model_calls([*trace.spans, *trace.spans])) == 1
