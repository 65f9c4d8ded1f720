from collections.abc import Callable
from typing import Any

import pytest

from lightning_core.emitter import emit_annotation, emit_message, emit_reward, get_message_value
from lightning_core.errors import NoActiveTracer
from lightning_core.semconv import AGL_MESSAGE
from lightning_core.types import Span


def test_message_is_carried_in_the_body() -> None:
    span = emit_message("hello", attributes={"level": "debug"}, propagate=False)
    assert span.name == AGL_MESSAGE
    assert span.attributes == {"agentlightning.message.body": "hello", "level": "debug"}
    assert get_message_value(span) == "hello"
    assert get_message_value(Span.from_core_fields(span)) == "hello"


def test_span_without_a_message_has_none() -> None:
    assert get_message_value(emit_reward(1.0, propagate=False)) is None


def test_message_must_be_text() -> None:
    with pytest.raises(TypeError, match="a message must be a str, got dict"):
        emit_message({"text": "hello"}, propagate=False)  # type: ignore[arg-type]
    foreign = Span.from_attributes(attributes={"agentlightning.message.body": 1}, name="theirs")
    with pytest.raises(TypeError, match=r"span 'theirs' has a int as 'agentlightning\.message\.body'"):
        get_message_value(foreign)


def test_message_cannot_be_replaced_by_an_attribute() -> None:
    with pytest.raises(ValueError, match=r"only emit_message itself writes 'agentlightning\.message\.body'"):
        emit_message("hello", attributes={"agentlightning.message.body": "bye"}, propagate=False)


@pytest.mark.parametrize(("emit", "value"), [(emit_message, "hello"), (emit_reward, 1.0), (emit_annotation, {"a": 1})])
def test_what_is_emitted_outside_of_a_trace_says_what_to_do(emit: Callable[[Any], Any], value: object) -> None:
    expected = rf"{emit.__name__} found no active tracer; call it from an agent.* or pass propagate=False"
    with pytest.raises(NoActiveTracer, match=expected):
        emit(value)
