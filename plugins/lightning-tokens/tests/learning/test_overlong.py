import pytest
from learning_toys import add_reward, options, rollout, scored
from lightning_tokens.learning.groups import learn_from_group
from lightning_tokens.learning.options import LearningOptions
from lightning_tokens.learning.outcomes import EndedRollout, overlong_punishment, read_rollout

from lightning_core.testing.adapter import TraceBuilder


@pytest.mark.parametrize(
    ("length", "expected"),
    [(1, 0.0), (16384, 0.0), (16385, -1 / 4096), (17408, -0.25), (18432, -0.5), (20480, -1.0), (25000, -1.0)],
)
def test_the_punishment_is_that_of_the_paper(length: int, expected: float) -> None:
    """DAPO, section 4.1: 16,384 tokens are expected, and 4,096 more are the punished interval."""
    assert overlong_punishment(length, max_length=20480, buffer=4096) == expected


def test_a_long_response_is_worth_less_and_the_reward_is_told_as_it_was_given() -> None:
    told = options(max_response_length=4, overlong_buffer=2, overlong_penalty=3.0, norm_by_std=False)
    group = [scored(1.0, ([1], list(range(n))), told=told) for n in (2, 3, 4, 9)]
    lesson = learn_from_group(group, options=told)
    assert [each.reward for each in group] == [1.0] * 4
    assert [each.penalty for each in group] == [0.0, -1.5, -3.0, -3.0]
    assert [row.scores[-1] for row in lesson.rows] == [1.0, -0.5, -2.0, -2.0]
    assert [row.answers[-1].advantage for row in lesson.rows] == [1.875, 0.375, -1.125, -1.125]


def test_a_critic_learns_from_what_a_long_response_is_worth() -> None:
    told = options(max_response_length=4, overlong_buffer=2, estimator="gae")
    (row,) = learn_from_group([scored(1.0, ([1], [2, 3, 4]), told=told)], options=told).rows
    assert (row.scores, row.answers[-1].reward) == ([0.0, 0.0, 0.5], 0.5)


def test_an_answer_in_between_is_as_long_as_its_row() -> None:
    told = options(max_response_length=8, overlong_buffer=4)
    assert scored(1.0, ([1], [2, 3]), ([1, 2, 3, 9, 9], [4, 5]), told=told).penalty == -0.5
    of_calls = options(max_response_length=8, overlong_buffer=4, level="transition")
    assert scored(1.0, ([1], [2, 3]), ([1, 2, 3, 9, 9], [4, 5]), told=of_calls).penalty == 0.0


def cut_off(*reasons: str, reward: float, told: LearningOptions) -> EndedRollout:
    trace, context = TraceBuilder(), [1]
    for reason in reasons:
        trace.call(list(context), [2, 3], attributes={"gen_ai.completion.0.finish_reason": reason})
        context += [2, 3, 9]
    add_reward(trace, reward)
    return read_rollout(rollout(), trace.spans, options=told)


def test_a_truncated_rollout_is_masked_and_its_reward_counts_in_the_group() -> None:
    told = options(mask_truncated=True, norm_by_std=False, max_response_length=5)
    group = [
        cut_off("length", reward=0.0, told=told),
        cut_off("length", "stop", reward=1.0, told=told),  # its agent went on
        scored(2.0, ([1], [2, 3, 4, 5, 6, 7]), told=told),  # its row is too long
        cut_off("stop", reward=1.0, told=told),
    ]
    assert [each.is_truncated for each in group] == [True, False, True, False]
    lesson = learn_from_group(group, options=told)
    assert [(row.session, row.answers[0].advantage) for row in lesson.rows] == [(1, 0.0), (3, 0.0)]
    assert len(learn_from_group(group, options=options(max_response_length=5)).rows) == 4


def test_a_group_of_truncated_rollouts_says_so() -> None:
    told = options(mask_truncated=True)
    lesson = learn_from_group([cut_off("length", reward=float(n), told=told) for n in range(2)], options=told)
    assert lesson.dropped == "none of its rollouts has a row that fits, or all that do were cut off (mask_truncated)"
