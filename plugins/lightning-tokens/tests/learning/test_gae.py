import pytest
from hypothesis import given, strategies as st
from lightning_tokens.learning.advantages import gae, whitened

numbers = st.floats(-4, 4, allow_nan=False, width=32)
steps = st.lists(st.tuples(numbers, numbers), max_size=12)


def test_an_episode_by_hand():
    # delta_2 = 1 - 0.25; delta_1 = 0.5 * 0.25 - 0.5; advantage_1 = delta_1 + 0.5 * 0.5 * delta_2
    advantages, returns = gae([0.0, 1.0], [0.5, 0.25], gamma=0.5, lam=0.5)
    assert advantages.tolist() == [-0.1875, 0.75]
    assert returns.tolist() == [0.3125, 1.0]


@given(st.lists(st.integers(-50, 50), min_size=3, max_size=20).filter(lambda values: len(set(values)) > 1))
def test_whitened_values_have_mean_zero_and_variance_one(values):
    white = whitened(values)
    assert sum(white) == pytest.approx(0.0, abs=1e-6)
    assert sum(value * value for value in white) / (len(white) - 1) == pytest.approx(1.0, rel=1e-4)


def test_one_value_alone_is_whitened_to_zero():
    assert whitened([3.0]).tolist() == [0.0]
    assert whitened([]).tolist() == []


@given(st.lists(steps, max_size=5), st.floats(0, 1), st.floats(0, 1))
def test_several_episodes_at_once_are_as_each_by_itself(episodes, gamma, lam):
    rewards, values = ([step[part] for steps in episodes for step in steps] for part in (0, 1))
    together = gae(rewards, values, gamma=gamma, lam=lam, lengths=[len(steps) for steps in episodes])
    alone = [gae([r for r, _ in steps], [v for _, v in steps], gamma=gamma, lam=lam) for steps in episodes]
    for found, part in zip(together, (0, 1), strict=True):
        assert found.tolist() == [value for each in alone for value in each[part].tolist()]
