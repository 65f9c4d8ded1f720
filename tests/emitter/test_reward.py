import math
from fractions import Fraction

import pytest
from hypothesis import given, strategies as st
from opentelemetry.sdk.trace import ReadableSpan

from lightning_core.emitter import (
    NamedReward,
    emit_message,
    emit_reward,
    find_final_reward,
    find_reward_spans,
    get_reward_value,
    get_rewards_from_span,
    is_reward_span,
)
from lightning_core.semconv import AGL_ANNOTATION
from lightning_core.types import Span

names = st.text() | st.from_regex(r"[a-z0-9.]{1,12}", fullmatch=True)
numbers = st.floats(allow_nan=False, allow_infinity=False)


def test_single_reward_is_an_annotation_named_primary() -> None:
    span = emit_reward(0.5, propagate=False)
    assert span.name == AGL_ANNOTATION
    assert span.status.status_code == "OK"
    assert span.attributes == {"agentlightning.reward.0.name": "primary", "agentlightning.reward.0.value": 0.5}
    assert span.start_time == span.end_time is not None


@pytest.mark.parametrize(("given_number", "value"), [(True, 1.0), (3, 3.0), (Fraction(1, 4), 0.25)])
def test_any_real_number_becomes_a_float(given_number: float, value: float) -> None:
    recorded = get_reward_value(emit_reward(given_number, propagate=False))
    assert recorded == value
    assert type(recorded) is float


def test_first_named_reward_is_the_primary_one_unless_another_is_chosen() -> None:
    rewards = {"speed": 0.2, "quality": 0.9, "style": 0.4}
    assert get_reward_value(emit_reward(rewards, propagate=False)) == 0.2
    chosen = emit_reward(rewards, primary_key="quality", propagate=False)
    assert get_rewards_from_span(chosen) == [
        NamedReward("quality", 0.9),
        NamedReward("speed", 0.2),
        NamedReward("style", 0.4),
    ]


@given(st.dictionaries(names, numbers, min_size=1), st.data())
def test_named_rewards_come_back_with_their_names_values_and_order(
    rewards: dict[str, float], data: st.DataObject
) -> None:
    primary = data.draw(st.none() | st.sampled_from(list(rewards)))
    span = emit_reward(rewards, primary_key=primary, attributes={"note": {"by": "me"}}, propagate=False)
    first = next(iter(rewards)) if primary is None else primary
    expected = [first, *(name for name in rewards if name != first)]
    stored = Span.from_core_fields(span)
    assert get_rewards_from_span(stored) == [NamedReward(name, rewards[name]) for name in expected]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_reward_that_is_not_finite_is_refused_by_name(value: float) -> None:
    with pytest.raises(ValueError, match=f"reward 'primary' must be finite, got {value}; for a run without a score"):
        emit_reward(value, propagate=False)
    with pytest.raises(ValueError, match="reward 'b' must be finite"):
        emit_reward({"a": 1.0, "b": value}, propagate=False)


def test_reward_too_large_for_a_float_is_refused() -> None:
    with pytest.raises(ValueError, match="reward 'primary' is too large for a float"):
        emit_reward(10**400, propagate=False)


@pytest.mark.parametrize("value", ["1.0", None, [1.0], 1j])
def test_reward_that_is_no_number_is_refused_by_name(value: object) -> None:
    with pytest.raises(TypeError, match=r"reward 'quality' must be a number, got .*; convert with float\(\)"):
        emit_reward({"quality": value}, propagate=False)  # type: ignore[dict-item]


def test_reward_names_must_make_sense() -> None:
    with pytest.raises(ValueError, match="no reward in an empty dict"):
        emit_reward({}, propagate=False)
    with pytest.raises(ValueError, match="primary_key='c' is none of the rewards: a, b"):
        emit_reward({"a": 1.0, "b": 2.0}, primary_key="c", propagate=False)
    with pytest.raises(ValueError, match="primary_key='a' chooses among named rewards"):
        emit_reward(1.0, primary_key="a", propagate=False)
    with pytest.raises(TypeError, match=r"a reward is named 1 \(int\)"):
        emit_reward({1: 1.0}, propagate=False)  # type: ignore[dict-item]


def test_rewards_cannot_be_slipped_in_as_attributes() -> None:
    with pytest.raises(ValueError, match=r"only emit_reward itself writes 'agentlightning.reward.1.value'"):
        emit_reward(1.0, attributes={"agentlightning": {"reward": {"1": {"value": math.nan}}}}, propagate=False)


def test_final_reward_is_that_of_the_last_reward_span() -> None:
    first, second = emit_reward(0.1, propagate=False), emit_reward({"a": 0.2, "b": 0.3}, propagate=False)
    message = emit_message("done", propagate=False)
    spans = [first, second, message]
    assert find_reward_spans(spans) == [first, second]
    assert [is_reward_span(span) for span in spans] == [True, True, False]
    assert find_final_reward(spans) == 0.2
    assert find_final_reward([message]) is None
    assert get_reward_value(message) is None


def test_rewards_are_read_from_opentelemetry_spans_too() -> None:
    emitted = emit_reward({"a": 1.5, "b": 2.5}, propagate=False)
    span = ReadableSpan("a span", attributes=emitted.attributes)
    assert get_rewards_from_span(span) == [NamedReward("a", 1.5), NamedReward("b", 2.5)]
    assert find_final_reward([ReadableSpan("no attributes"), span]) == 1.5


def test_broken_reward_of_a_foreign_span_is_an_error_and_not_a_score() -> None:
    span = Span.from_attributes(attributes={"agentlightning.reward.0.name": "a"}, name="theirs")
    with pytest.raises(ValueError, match=r"span 'theirs' has a broken reward at 'agentlightning.reward.0': .*None"):
        get_reward_value(span)
