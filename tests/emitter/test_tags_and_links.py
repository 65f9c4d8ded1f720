import pytest
from hypothesis import given, strategies as st
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanContext

from lightning_core.emitter import (
    LinkMatch,
    emit_annotation,
    emit_reward,
    extract_links_from_attributes,
    extract_tags_from_attributes,
    get_reward_value,
    make_link_attributes,
    make_tag_attributes,
    query_linked_spans,
)
from lightning_core.types import Span


@given(st.lists(st.text()))
def test_tags_come_back_in_their_order(tags: list[str]) -> None:
    assert extract_tags_from_attributes(make_tag_attributes(tags)) == tags


@given(st.dictionaries(st.text(), st.text()))
def test_links_come_back_in_their_order(links: dict[str, str]) -> None:
    found = extract_links_from_attributes(make_link_attributes(links))
    assert found == [LinkMatch(key, value) for key, value in links.items()]


def test_names_are_those_of_agentlightning_0_3() -> None:
    assert make_tag_attributes(["fast"]) == {"agentlightning.tag.0": "fast"}
    assert make_link_attributes({"gen_ai.response.id": "r"}) == {
        "agentlightning.link.0.key_match": "gen_ai.response.id",
        "agentlightning.link.0.value_match": "r",
    }


def test_reward_can_be_tagged_and_linked() -> None:
    span = emit_reward(
        0.5, attributes=make_tag_attributes(["fast", "fair"]) | make_link_attributes({"k": "v"}), propagate=False
    )
    assert get_reward_value(span) == 0.5
    assert extract_tags_from_attributes(span.attributes) == ["fast", "fair"]
    assert extract_links_from_attributes(span.attributes) == [LinkMatch("k", "v")]


def test_tags_of_an_annotation_that_kept_its_list_are_read_too() -> None:
    span = emit_annotation({"agentlightning.tag": ["a", "b"]}, propagate=False)
    assert extract_tags_from_attributes(span.attributes) == ["a", "b"]


def test_what_is_no_tag_and_no_link_is_refused() -> None:
    with pytest.raises(TypeError, match="tags are a list of strings, got the string 'fast'"):
        make_tag_attributes("fast")
    with pytest.raises(TypeError, match=r"a tag must be a str, got 1 \(int\)"):
        make_tag_attributes([1])  # type: ignore[list-item]
    with pytest.raises(TypeError, match=r"a link needs two strings, .* got 'k' and 1"):
        make_link_attributes({"k": 1})  # type: ignore[dict-item]
    with pytest.raises(ValueError, match=r"'agentlightning.tag' holds 1 \(int\)"):
        extract_tags_from_attributes({"agentlightning.tag.0": 1})
    with pytest.raises(ValueError, match=r"'agentlightning.link.0' is not a link: key_match 'k', value_match None"):
        extract_links_from_attributes({"agentlightning.link.0.key_match": "k"})


def test_linked_spans_have_all_of_what_the_links_say() -> None:
    first = Span.from_attributes(attributes={"k": "v", "n": "1"}, trace_id="a" * 32, span_id="b" * 16)
    second = Span.from_attributes(attributes={"k": "v"})
    spans = [first, second]
    assert query_linked_spans(spans, [LinkMatch("k", "v")]) == [first, second]
    assert query_linked_spans(spans, [LinkMatch("k", "v"), LinkMatch("n", "1")]) == [first]
    assert query_linked_spans(spans, [LinkMatch("span_id", "b" * 16)]) == [first]
    assert query_linked_spans(spans, [LinkMatch("trace_id", "c" * 32)]) == []


def test_linked_spans_are_found_among_those_of_opentelemetry_too() -> None:
    span = ReadableSpan("s", context=SpanContext(trace_id=0xA, span_id=0xB, is_remote=False))
    assert query_linked_spans([span], [LinkMatch("trace_id", f"{0xA:032x}")]) == [span]
    assert query_linked_spans([span], [LinkMatch("span_id", f"{0xB:016x}")]) == [span]
    assert query_linked_spans([ReadableSpan("s")], [LinkMatch("span_id", f"{0xB:016x}")]) == []
