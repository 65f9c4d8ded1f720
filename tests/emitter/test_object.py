import enum
import math
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, strategies as st
from opentelemetry.sdk.trace import ReadableSpan
from pydantic import BaseModel
from pydantic_core import from_json

from lightning_core.emitter import emit_message, emit_object, get_object_value
from lightning_core.semconv import AGL_OBJECT
from lightning_core.types import Span

plain = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
in_json = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
json_values = st.recursive(in_json, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20)


@given(plain | json_values | st.binary())
def test_plain_data_comes_back_with_its_type(value: Any) -> None:
    span = emit_object(value, propagate=False)
    assert span.name == AGL_OBJECT
    back = get_object_value(Span.from_core_fields(span))
    assert back == value
    assert type(back) is type(value)


@pytest.mark.parametrize(
    ("value", "attributes"),
    [
        (True, {"agentlightning.object.type": "bool", "agentlightning.object.literal": "True"}),
        (3, {"agentlightning.object.type": "int", "agentlightning.object.literal": "3"}),
        (b"\xff", {"agentlightning.object.type": "bytes", "agentlightning.object.literal": "/w=="}),
        ([1, "a"], {"agentlightning.object.type": "list", "agentlightning.object.json": '[1, "a"]'}),
        (None, {"agentlightning.object.type": "NoneType", "agentlightning.object.json": "null"}),
    ],
)
def test_attributes_are_those_of_agentlightning_0_3(value: Any, attributes: dict[str, str]) -> None:
    assert emit_object(value, propagate=False).attributes == attributes


class Color(enum.StrEnum):
    RED = "red"


class Answer(BaseModel):
    text: str


@dataclass
class Step:
    number: int
    answer: Answer


def test_dataclasses_models_and_enums_come_back_as_plain_data() -> None:
    span = emit_object([Step(1, Answer(text="hi")), Color.RED, (1, 2)], propagate=False)
    assert get_object_value(span) == [{"number": 1, "answer": {"text": "hi"}}, "red", [1, 2]]
    assert get_object_value(emit_object(Color.RED, propagate=False)) == "red"
    assert emit_object(Answer(text="hi"), propagate=False).attributes["agentlightning.object.type"].endswith(".Answer")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"loss": math.nan, "best": [math.inf, -math.inf, 1.5]}, '{"loss": null, "best": [null, null, 1.5]}'),
        (["NaN", "Infinity", "é😀"], '["NaN", "Infinity", "\\u00e9\\ud83d\\ude00"]'),
        (["a\ud800"], '["a\\ufffd"]'),
    ],
    ids=ascii,
)
def test_json_is_such_that_strict_readers_take_it(value: Any, text: str) -> None:
    assert emit_object(value, propagate=False).attributes["agentlightning.object.json"] == text
    from_json(text, allow_inf_nan=False)


def test_value_that_cannot_be_json_is_refused_with_its_type() -> None:
    with pytest.raises(TypeError, match="emit_object cannot write a object as JSON; pass plain data"):
        emit_object({"k": object()}, propagate=False)
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(ValueError, match="Circular reference"):
        emit_object(loop, propagate=False)


def test_object_cannot_be_slipped_in_as_attributes() -> None:
    with pytest.raises(ValueError, match=r"only emit_object itself writes 'agentlightning.object.json'"):
        emit_object(1, attributes={"agentlightning": {"object": {"json": "2"}}}, propagate=False)


def test_span_without_an_object_has_none() -> None:
    assert get_object_value(emit_message("m", propagate=False)) is None
    assert get_object_value(ReadableSpan("no attributes")) is None


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"agentlightning.object.json": "{"}, "cannot be read as JSON: Expecting"),
        ({"agentlightning.object.json": 5}, "cannot be read as JSON: it is of type int, not text"),
        ({"agentlightning.object.type": "int", "agentlightning.object.literal": "x"}, "cannot be read as int"),
        ({"agentlightning.object.type": "bool", "agentlightning.object.literal": "yes"}, "as bool: 'yes' is none"),
        ({"agentlightning.object.type": "bytes", "agentlightning.object.literal": "?"}, "as bytes: "),
        ({"agentlightning.object.type": "Thing", "agentlightning.object.literal": "x"}, "as Thing: 'x' is none"),
    ],
)
def test_broken_object_of_a_foreign_span_is_an_error(attributes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"span 'theirs' has an object that .*{message}"):
        get_object_value(Span.from_attributes(attributes=attributes, name="theirs"))
