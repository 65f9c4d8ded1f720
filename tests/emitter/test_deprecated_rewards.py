"""Rewards in the formats that agentlightning wrote before 0.3."""

import json
from typing import Any

import pytest

from lightning_core.emitter import NamedReward, find_final_reward, get_reward_value, get_rewards_from_span
from lightning_core.semconv import AGL_ANNOTATION
from lightning_core.types import Span


def span(attributes: dict[str, Any], name: str = "a task") -> Span:
    return Span.from_attributes(attributes=attributes, name=name)


@pytest.mark.parametrize("name", ["agentops.task.output", "agentops.entity.output"])
@pytest.mark.parametrize("encode", [json.dumps, dict])
def test_output_of_a_decorated_reward_function_is_the_primary_reward(name: str, encode: Any) -> None:
    old = span({name: encode({"type": "reward", "value": 0.5})})
    assert get_rewards_from_span(old) == [NamedReward("primary", 0.5)]
    assert get_reward_value(span({name: encode({"type": "reward", "value": None})})) is None


def test_reward_attribute_of_an_annotation_is_the_primary_reward() -> None:
    assert get_reward_value(span({"reward": 1}, AGL_ANNOTATION)) == 1.0
    assert get_reward_value(span({"reward": 1.0}, "something else")) is None


def test_new_format_goes_before_an_old_one() -> None:
    new = {"agentlightning.reward.0.name": "primary", "agentlightning.reward.0.value": 0.25}
    assert get_reward_value(span({**new, "reward": 1.0}, AGL_ANNOTATION)) == 0.25


@pytest.mark.parametrize("output", ['{"type": "tool", "value": 1}', 'the "reward" is yours', "[1]", 5, None])
def test_other_outputs_are_no_rewards(output: Any) -> None:
    assert get_reward_value(span({"agentops.task.output": output})) is None


def test_final_reward_may_be_an_old_one() -> None:
    old = span({"agentops.task.output": '{"type": "reward", "value": 0.5}'})
    assert find_final_reward([span({"reward": 0.1}, AGL_ANNOTATION), old, span({})]) == 0.5


def test_old_reward_that_is_no_number_is_an_error_and_not_a_score() -> None:
    with pytest.raises(ValueError, match="span 'a task' has a broken reward: 'high'; a reward is a number"):
        get_reward_value(span({"agentops.task.output": '{"type": "reward", "value": "high"}'}))
