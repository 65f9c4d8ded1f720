import math
from typing import Any

import pytest

from lightning_core.emitter import emit_annotation, get_reward_value
from lightning_core.semconv import AGL_ANNOTATION


def test_annotation_is_a_span_with_flat_attributes() -> None:
    span = emit_annotation({"judge": {"model": "m", "scores": [1, 2]}, "note": None}, propagate=False)
    assert span.name == AGL_ANNOTATION
    assert span.status.status_code == "OK"
    assert span.attributes == {"judge.model": "m", "judge.scores": [1, 2], "note": None}


def test_annotation_may_carry_rewards_that_are_sound() -> None:
    span = emit_annotation({"agentlightning.reward": [{"name": "a", "value": 0.5}]}, propagate=False)
    assert get_reward_value(span) == 0.5
    with pytest.raises(ValueError, match="reward 'a' must be finite, got nan"):
        emit_annotation({"agentlightning.reward": [{"name": "a", "value": math.nan}]}, propagate=False)
    with pytest.raises(ValueError, match=r"broken reward at 'agentlightning.reward.0'"):
        emit_annotation({"agentlightning.reward": [{"name": "a", "value": "1"}]}, propagate=False)


def test_annotation_of_nothing_or_of_what_no_span_can_have_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing in an empty annotation"):
        emit_annotation({}, propagate=False)
    with pytest.raises(ValueError, match=r"attribute 'a\.b': a span attribute cannot be a object"):
        emit_annotation({"a": {"b": object()}}, propagate=False)


@pytest.mark.parametrize("wrong", ["good", ["a"], [], 3])
def test_annotation_that_is_no_mapping_says_what_to_use(wrong: Any) -> None:
    expected = rf"an annotation is a mapping of names to values, got {type(wrong).__name__}; use emit_message for text"
    with pytest.raises(TypeError, match=expected):
        emit_annotation(wrong, propagate=False)
