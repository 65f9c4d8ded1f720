"""What an attempt used of models, from spans of any source."""

from typing import Any

from lightning_core.adapter import read_usage
from lightning_core.adapter.usage import Usage
from lightning_core.types import Span


def call(**attributes: Any) -> Span:
    named = {name.replace("__", "."): value for name, value in attributes.items()}
    return Span.from_attributes(attributes={"gen_ai.operation.name": "chat", **named}, name="chat")


def test_attempt_without_model_calls_used_nothing() -> None:
    assert read_usage([Span.from_attributes(attributes={}, name="work")]) == Usage()
    assert read_usage([]) == Usage()


def test_sums_are_over_the_calls_that_tell() -> None:
    spans = [
        call(gen_ai__usage__input_tokens=7, gen_ai__usage__cost=0.5),
        call(gen_ai__usage__input_tokens=1, gen_ai__usage__output_tokens=2, gen_ai__cost__total_cost=0.25),
        call(),
    ]
    assert read_usage(spans) == Usage(calls=3, input_tokens=8, output_tokens=2, cost=0.75)


def test_usage_of_several_attempts_adds_up() -> None:
    assert Usage(1, 2, None, None) + Usage(2, 3, 4, 0.5) == Usage(3, 5, 4, 0.5)
