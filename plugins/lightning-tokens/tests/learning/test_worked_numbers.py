"""Numbers worked out by hand, from the rollouts to what verl is given."""

import math

import pytest
from learning_toys import conversation, options, plain, scored
from lightning_tokens.learning.groups import learn_from_group
from lightning_tokens.learning.metrics import validation_metrics
from lightning_tokens.learning.steps import step_advantages

# Two rows of one rollout, with masks 1 1 0 and 1 0 0 on a width of three, and one row of another, with mask 1 1 1
FIRST = scored(1.0, ([1], [2, 3]), ([7], [8]))
SECOND = scored(3.0, ([1], [4, 5, 6]))
MASKS = [[1, 1, 0], [1, 0, 0], [1, 1, 1]]


def test_grpo_advantages_are_broadcast_to_the_rows():
    lesson = learn_from_group([FIRST, SECOND], options=options())
    step = step_advantages(
        keys=[f"u_{row.session}_{row.index}" for row in lesson.rows],
        masks=MASKS,
        answers=[row.packed() for row in lesson.rows],
        options=options(),
    )
    low, high = -0.7071, 0.7071
    assert plain(step.advantages) == [
        [pytest.approx(low, abs=5e-5), pytest.approx(low, abs=5e-5), 0.0],
        [pytest.approx(low, abs=5e-5), 0.0, 0.0],
        [pytest.approx(high, abs=5e-5)] * 3,
    ]


def test_normalised_by_rollout_both_have_half_of_the_mass():
    lesson = learn_from_group([FIRST, SECOND], options=options())
    keys = [f"u_{row.session}_{row.index}" for row in lesson.rows]
    step = step_advantages(keys=keys, masks=MASKS, answers=[row.packed() for row in lesson.rows], options=options())
    # verl's seq-mean-token-mean: the mean over rows of the mean over tokens, here of a loss of 1 everywhere
    masses = [weight / len(MASKS) for weight in step.weights]
    assert masses[0] + masses[1] == pytest.approx(1 / 2)
    assert masses[2] == pytest.approx(1 / 2)
    assert masses[0] == pytest.approx(2 * masses[1])


def test_seven_rollouts_of_two_turns_with_rewards_one_to_seven():
    metrics = validation_metrics([scored(float(reward), *conversation(2)) for reward in range(1, 8)])
    assert metrics["val/reward"] == 4.0
    assert metrics["val/turn_count"] == 2.0
    assert metrics["val/n_rollouts"] == 7.0
    assert math.isclose(metrics["val/reward_low"], 4.0 - 2.4469 * 2.1602 / math.sqrt(7), rel_tol=1e-4)
