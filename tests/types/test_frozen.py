"""What spans share cannot be changed."""

import copy
import json
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import ValidationError

from lightning_core.types import Event, Link, OtelResource, SpanContext, TraceStatus
from lightning_core.types.frozen import FrozenDict, freeze

CONTEXT = SpanContext(trace_id="a" * 32, span_id="b" * 16, trace_state={"vendor": "x"})


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.__setitem__("b", 1),
        lambda d: d.__delitem__("a"),
        lambda d: d.__ior__({"b": 1}),
        lambda d: d.update(b=1),
        lambda d: d.setdefault("b", 1),
        lambda d: d.pop("a"),
        lambda d: d.popitem(),
        lambda d: d.clear(),
    ],
)
def test_a_frozen_dict_refuses_every_change(change: Callable[[dict[str, Any]], Any]) -> None:
    frozen = FrozenDict(a=1)
    with pytest.raises(TypeError, match=r"cannot be changed; make a new one: dict\(old, key=value\)"):
        change(frozen)
    assert frozen == {"a": 1}


def test_a_frozen_dict_can_be_copied_pickled_merged_and_written_as_json() -> None:
    frozen = freeze({"a": [1, {"b": (2,)}]})
    assert frozen == {"a": (1, {"b": (2,)})}
    assert copy.deepcopy(frozen) is frozen
    assert copy.copy(frozen) is frozen
    assert pickle.loads(pickle.dumps(frozen)) == frozen
    assert json.loads(json.dumps(frozen)) == {"a": [1, {"b": [2]}]}
    assert frozen | {"c": 3} == {**frozen, "c": 3}
    assert dict(frozen, c=3)["c"] == 3


@pytest.mark.parametrize(
    ("part", "field"),
    [
        (CONTEXT, "span_id"),
        (TraceStatus(status_code="OK"), "status_code"),
        (OtelResource(attributes={"a": [1]}), "schema_url"),
        (Event(name="e", attributes={"a": [1]}), "name"),
        (Link(context=CONTEXT, attributes={"a": [1]}), "context"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_shared_parts_of_a_span_refuse_every_change(part: Any, field: str) -> None:
    with pytest.raises(ValidationError, match="frozen"):
        setattr(part, field, "x")
    attributes = getattr(part, "attributes", None)
    assert attributes is None or isinstance(attributes, FrozenDict)
    assert type(part).model_validate_json(part.model_dump_json()) == part


def test_the_trace_state_of_a_context_cannot_be_changed() -> None:
    assert isinstance(CONTEXT.trace_state, FrozenDict)
    assert isinstance(SpanContext(trace_id="a", span_id="b").trace_state, FrozenDict)
