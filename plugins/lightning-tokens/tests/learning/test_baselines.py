import math

import pytest
from hypothesis import given, strategies as st
from lightning_tokens.learning.advantages import grpo_advantages, rloo_advantages

rewards = st.integers(-8, 8).map(lambda eighths: eighths / 8)


def test_grpo_counts_in_standard_deviations_of_a_sample():
    assert grpo_advantages([[1.0], [3.0]]) == [
        [pytest.approx(-1 / math.sqrt(2), rel=1e-5)],
        [pytest.approx(1 / math.sqrt(2), rel=1e-5)],
    ]


def test_without_the_standard_deviation_it_is_the_difference_to_the_mean():
    assert grpo_advantages([[1.0], [3.0], [5.0]], norm_by_std=False) == [[-2.0], [0.0], [2.0]]


def test_equal_rewards_teach_nothing():
    assert grpo_advantages([[0.25], [0.25], [0.25]]) == [[0.0], [0.0], [0.0]]
    assert rloo_advantages([[0.25], [0.25], [0.25]]) == [[0.0], [0.0], [0.0]]


def test_rloo_compares_with_the_mean_of_the_others():
    assert rloo_advantages([[1.0], [2.0], [6.0]]) == [[-3.0], [-1.5], [4.5]]


def test_rloo_leaves_out_all_rewards_of_the_own_rollout():
    assert rloo_advantages([[1.0, 2.0], [6.0]]) == [[-5.0, -4.0], [4.5]]


@given(st.lists(rewards, min_size=2, max_size=8), rewards)
def test_a_constant_added_to_all_rewards_changes_nothing(values, constant):
    moved = [[value + constant] for value in values]
    groups = [[value] for value in values]
    for advantages in (grpo_advantages, rloo_advantages):
        found = [each for (each,) in advantages(groups)]
        assert found == pytest.approx([each for (each,) in advantages(moved)], abs=1e-9)
        assert math.fsum(found) == pytest.approx(0.0, abs=1e-6)
