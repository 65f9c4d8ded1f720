import pytest
from hypothesis import given, strategies as st

from lightning_core.emitter import (
    emit_annotation,
    emit_reward,
    extract_tags_from_attributes,
    get_reward_value,
    make_tag_attributes,
)


@given(st.lists(st.text()))
def test_tags_come_back_in_their_order(tags: list[str]) -> None:
    assert extract_tags_from_attributes(make_tag_attributes(tags)) == tags


def test_names_are_those_of_agentlightning_0_3() -> None:
    assert make_tag_attributes(["fast"]) == {"agentlightning.tag.0": "fast"}


def test_reward_can_be_tagged() -> None:
    span = emit_reward(0.5, attributes=make_tag_attributes(["fast", "fair"]), propagate=False)
    assert get_reward_value(span) == 0.5
    assert extract_tags_from_attributes(span.attributes) == ["fast", "fair"]


def test_tags_of_an_annotation_that_kept_its_list_are_read_too() -> None:
    span = emit_annotation({"agentlightning.tag": ["a", "b"]}, propagate=False)
    assert extract_tags_from_attributes(span.attributes) == ["a", "b"]


def test_what_is_no_tag_is_refused() -> None:
    with pytest.raises(TypeError, match="tags are a list of strings, got the string 'fast'"):
        make_tag_attributes("fast")
    with pytest.raises(TypeError, match=r"a tag must be a str, got 1 \(int\)"):
        make_tag_attributes([1])  # type: ignore[list-item]
    with pytest.raises(ValueError, match=r"'agentlightning.tag' holds 1 \(int\)"):
        extract_tags_from_attributes({"agentlightning.tag.0": 1})
