"""Numbers worked out by hand, from the rollouts to what verl is given."""

import math

from learning_toys import conversation, scored
from lightning_tokens.learning.metrics import validation_metrics

# Two rows of one rollout, with masks 1 1 0 and 1 0 0 on a width of three, and one row of another, with mask 1 1 1
FIRST = scored(1.0, ([1], [2, 3]), ([7], [8]))
SECOND = scored(3.0, ([1], [4, 5, 6]))
MASKS = [[1, 1, 0], [1, 0, 0], [1, 1, 1]]


def test_seven_rollouts_of_two_turns_with_rewards_one_to_seven():
    metrics = validation_metrics([scored(float(reward), *conversation(2)) for reward in range(1, 8)])
    assert metrics["val/reward"] == 4.0
    assert metrics["val/turn_count"] == 2.0
    assert metrics["val/n_rollouts"] == 7.0
    assert math.isclose(metrics["val/reward_low"], 4.0 - 2.4469 * 2.1602 / math.sqrt(7), rel_tol=1e-4)
