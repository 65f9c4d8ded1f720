import math

import pytest
from learning_toys import (
    RAISED,
    add_reward,
    conversation,
    failed,
    faulty,
    judged,
    options,
    rollout,
    scored,
    spans_of,
    two_choices,
)
from lightning_tokens.learning.groups import Lesson, learn_from_group
from lightning_tokens.learning.outcomes import read_rollout

from lightning_core.testing.adapter import TraceBuilder


def advantages(lesson: Lesson) -> list[list[float | None]]:
    return [[answer.advantage for answer in row.answers] for row in lesson.rows]


def test_every_row_of_a_rollout_has_the_advantage_of_the_rollout():
    split = scored(1.0, ([1], [2]), ([7], [8]))
    lesson = learn_from_group([split, scored(3.0)], options=options())
    half = math.sqrt(0.5)
    assert advantages(lesson) == [[pytest.approx(-half, rel=1e-5)]] * 2 + [[pytest.approx(half, rel=1e-5)]]
    assert [(row.session, row.index) for row in lesson.rows] == [(0, 0), (0, 1), (1, 0)]


def test_a_reward_counts_although_the_prompt_was_too_long_to_train_on():
    told = options(max_prompt_length=2, norm_by_std=False)
    group = [scored(5.0, ([1, 1, 1], [2]), told=told), scored(1.0, told=told), scored(0.0, told=told)]
    lesson = learn_from_group(group, options=told)
    assert [row.session for row in lesson.rows] == [1, 2]
    assert advantages(lesson) == [[-1.0], [-2.0]]


@pytest.mark.parametrize("missing", [failed(([1], [2])), faulty(), scored(None)])
def test_what_was_not_scored_is_no_zero(missing):
    told = options(norm_by_std=False)
    lesson = learn_from_group([scored(1.0), missing, scored(2.0)], options=told)
    assert [row.session for row in lesson.rows] == [0, 2]
    assert advantages(lesson) == [[-0.5], [0.5]]


def test_a_failure_has_the_value_that_it_is_given_and_its_rows_are_trained_on():
    told = options(norm_by_std=False, on_failure=-1.0)
    lesson = learn_from_group([scored(1.0), failed(([1], [2]), told=told)], options=told)
    assert advantages(lesson) == [[1.0], [-1.0]]
    assert lesson.rows[1].scores == [-1.0]


def test_a_failure_before_the_first_call_counts_in_the_group():
    told = options(norm_by_std=False, on_failure=-1.0)
    lesson = learn_from_group([scored(1.0), failed(told=told), scored(0.0)], options=told)
    assert [row.session for row in lesson.rows] == [0, 2]
    assert advantages(lesson) == [[1.0], [0.0]]


def test_a_group_with_fewer_than_two_rewards_is_dropped_and_says_why():
    lesson = learn_from_group([scored(1.0), failed(([1], [2])), faulty()], options=options())
    assert lesson.rows == ()
    why = "1 of 3 rollouts have a reward, 2 are needed; the first without one: ValueError: the tool is not there"
    assert lesson.dropped == why


def test_a_critic_needs_no_second_reward():
    lesson = learn_from_group([scored(1.0)], options=options(estimator="gae"))
    assert lesson.dropped is None
    assert advantages(lesson) == [[None]]
    assert learn_from_group([failed(([1], [2]))], options=options(estimator="gae")).dropped is not None


def test_a_group_none_of_whose_rows_fit_is_dropped():
    told = options(max_prompt_length=1)
    lesson = learn_from_group([scored(1.0, told=told), scored(2.0, told=told)], options=told)
    assert lesson.dropped == "none of its rollouts has a row that fits: a prompt has 2 tokens, more than 1"


def test_a_group_without_spread_says_so():
    assert not learn_from_group([scored(1.0), scored(1.0)], options=options()).has_spread
    assert learn_from_group([scored(1.0), scored(2.0)], options=options()).has_spread


@pytest.mark.parametrize(
    ("credit", "rewards", "only"),
    [
        ("final", [(0.0, 1.0), (1.0, 1.0)], 1.0),
        ("discounted", [(None, 1.0), (None, 1.0)], 1.0),  # rows have the sums 0 and 1, and no advantage
        ("discounted", [(1.0, 0.0), (0.0, 1.0)], None),  # rows of the same sum have advantages
        ("per_call", [(1.0, 0.0), (0.0, 1.0)], None),
        ("per_call", [(0.5, 0.5), (None, 0.5)], 0.5),
    ],
)
def test_a_group_is_told_that_cannot_have_advantages_whatever_the_credit(credit, rewards, only):
    told = options(credit=credit)
    lesson = learn_from_group([judged(*each, told=told) for each in rewards], options=told)
    assert lesson.only_reward == only
    assert any(each for row in advantages(lesson) for each in row) == (only is None)


def test_the_score_stands_at_the_last_token_of_each_row():
    lesson = learn_from_group([scored(1.0, *conversation(2)), scored(3.0, ([1], [2]), ([7], [8]))], options=options())
    assert [row.scores for row in lesson.rows] == [[0.0, 0.0, 0.0, 0.0, 1.0], [3.0], [3.0]]


@pytest.mark.parametrize(
    ("credit", "discount", "judgements", "expected", "mask"),
    [
        ("per_call", 1.0, [(0.0, 3.0), (6.0,)], [[-3.0, 0.0], [3.0]], [1, 1, 0, 1, 1]),
        ("per_call", 1.0, [(None, 3.0), (6.0,)], [[None, -1.5], [1.5]], [0, 0, 0, 1, 1]),
        # Shao et al. 2024 (arXiv:2402.03300), section 4.1.3: the sum of the normalised rewards from this step on; the
        # mean of the four is 3
        ("discounted", 1.0, [(1.0, 2.0, 6.0), (3.0,)], [[0.0, 2.0, 3.0], [0.0]], [1, 1, 0, 1, 1, 0, 1, 1]),
        ("discounted", 0.5, [(None, None, 4.0), (0.0,)], [[0.5, 1.0, 2.0], [-2.0]], [1, 1, 0, 1, 1, 0, 1, 1]),
        ("discounted", 1.0, [(4.0, None), (0.0,)], [[2.0, None], [-2.0]], [1, 1, 0, 0, 0]),
    ],
)
def test_an_answer_is_judged_by_its_own_reward_or_by_the_later_ones_too(credit, discount, judgements, expected, mask):
    told = options(credit=credit, call_discount=discount, norm_by_std=False)
    lesson = learn_from_group([judged(*each, told=told) for each in judgements], options=told)
    assert advantages(lesson) == expected
    assert lesson.rows[0].mask == mask, "an answer that no reward judges is not trained on"


@pytest.mark.parametrize(
    ("credit", "expected"),
    [
        ("final", [[3.0, 3.0], [3.0], [-3.0]]),  # the last reward of each: 7 and 1
        ("per_call", [[-2.0, 3.0], [-2.0], [-1.0]]),  # 1, 6 and 2: a call counts once
        ("discounted", [[1.0, 3.0], [1.0], [-1.0]]),  # -2 + 3 for both choices of the first call
    ],
)
def test_choices_of_one_call_share_its_reward_and_none_counts_for_another(credit, expected):
    told = options(credit=credit, norm_by_std=False)
    rewards = (1.0, 7.0, 1.0) if credit == "final" else (1.0, 6.0, 2.0)
    group = [two_choices(*rewards[:2], told=told), judged(rewards[2], told=told)]
    lesson = learn_from_group(group, options=told)
    assert advantages(lesson) == expected
    assert [row.num_turns for row in lesson.rows] == [2, 2, 1]


def test_a_failure_is_what_the_last_answer_came_to():
    told = options(credit="per_call", norm_by_std=False, on_failure=-1.0)
    broken = read_rollout(rollout("failed", metadata=RAISED), spans_of(conversation(2), [2.0]), options=told)
    lesson = learn_from_group([broken, judged(5.0, told=told)], options=told)  # the mean of 2, -1 and 5 is 2
    assert advantages(lesson) == [[0.0, -3.0], [3.0]]


def test_a_reward_that_is_of_no_answer_counts_in_the_group_and_for_all_that_came_before():
    def told_first(told):
        trace = TraceBuilder()
        add_reward(trace, 5.0)
        for call in conversation(2):
            trace.call(*call)
        return read_rollout(rollout(), trace.spans, options=told)

    per_call = options(credit="per_call", norm_by_std=False)
    lesson = learn_from_group([told_first(per_call), judged(1.0, told=per_call)], options=per_call)
    assert [row.session for row in lesson.rows] == [1]
    assert advantages(lesson) == [[-2.0]]
    discounted = options(credit="discounted", norm_by_std=False)
    lesson = learn_from_group([told_first(discounted), judged(1.0, told=discounted)], options=discounted)
    assert advantages(lesson) == [[2.0, 2.0], [-2.0]]


def test_discounted_for_a_critic_the_reward_of_a_lost_answer_is_of_the_one_before():
    told = options(credit="discounted", estimator="gae", max_prompt_length=2)
    group = [read_rollout(rollout(), spans_of([([1], [2]), ([7, 7, 7], [8])], [1.0, 4.0]), options=told)]
    (row,) = learn_from_group(group, options=told).rows
    assert [answer.reward for answer in row.answers] == [5.0]


def test_verls_own_estimators_are_given_scores_and_all_of_the_mask():
    told = options(credit="per_call", estimator="reinforce_plus_plus", advantage="row")
    lesson = learn_from_group([judged(None, 3.0, told=told)], options=told)
    assert lesson.rows[0].mask == [1, 1, 0, 1, 1]
    assert lesson.rows[0].scores == [0.0, 0.0, 0.0, 0.0, 3.0]


@pytest.mark.parametrize(
    ("credit", "judgement", "scores"),
    [
        ("per_call", (3.0, None), [[0.0, 3.0]]),  # a row that no reward judged is not a zero
        ("discounted", (3.0, None), [[0.0, 3.0]]),
        ("discounted", (1.0, None, 4.0), [[0.0, 1.0 + 4.0 / 4], [0.0, 4.0 / 2], [0.0, 4.0]]),
    ],
)
def test_a_row_that_is_a_sample_has_the_rewards_that_judge_it(credit, judgement, scores):
    discount = 0.5 if credit == "discounted" else 1.0
    more = {"estimator": "reinforce_plus_plus", "advantage": "row", "level": "transition"}
    told = options(credit=credit, call_discount=discount, **more)
    assert [row.scores for row in learn_from_group([judged(*judgement, told=told)], options=told).rows] == scores


def test_discounted_what_comes_between_two_answers_of_a_row_stands_at_the_first_of_them():
    told = options(credit="discounted", estimator="reinforce_plus_plus", advantage="row")
    spans = spans_of([([1], [2]), ([7], [8]), ([1, 2, 9], [3])], [1.0, 2.0, 4.0])
    rows = learn_from_group([read_rollout(rollout(), spans, options=told)], options=told).rows
    assert [row.scores for row in rows] == [[3.0, 0.0, 4.0], [6.0]]


def test_answers_travel_as_plain_numbers():
    (row, _) = learn_from_group([scored(1.0), scored(2.0)], options=options(norm_by_std=False)).rows
    assert row.packed() == [(0, 0, 2, 1.0, -0.5)]
    assert [type(field) for field in row.packed()[0]] == [int, int, int, float, float]


@pytest.mark.parametrize("credit", ["per_call", "discounted"])
def test_rollouts_that_differ_in_their_final_reward_alone_are_told_apart(credit):
    told = options(credit=credit, norm_by_std=False)
    group = [
        read_rollout(rollout(), spans_of(conversation(2), [0.1, 0.2, final]), options=told) for final in (1.0, 0.0)
    ]
    lesson = learn_from_group(group, options=told)
    assert lesson.has_spread
    assert [row.answers[-1].reward for row in lesson.rows] == [1.2, 0.2]
    first, second = (row.answers[-1].advantage for row in lesson.rows)
    assert first - second == pytest.approx(1.0)


@pytest.mark.parametrize("credit", ["per_call", "discounted"])
def test_a_critic_is_given_the_final_reward_beside_that_of_the_last_answer(credit):
    told = options(credit=credit, estimator="gae")
    group = [read_rollout(rollout(), spans_of(conversation(2), [0.1, 0.2, 1.0]), options=told)]
    (row,) = learn_from_group(group, options=told).rows
    assert row.scores == [0.0, 0.1, 0.0, 0.0, 1.2]


@pytest.mark.parametrize("estimator", ["grpo", "gae"])
@pytest.mark.parametrize("credit", ["per_call", "discounted"])
@pytest.mark.parametrize("bad", [{"response": []}, {"error": "429"}])
def test_what_comes_after_a_call_without_an_answer_is_of_the_answer_before(bad, credit, estimator):
    told = options(credit=credit, estimator=estimator, norm_by_std=False)

    def ended(final):
        trace = TraceBuilder()
        first, second, third = conversation(3)
        trace.call(*first)
        add_reward(trace, 0.25)
        trace.call(*second)
        trace.call(third[0], **bad)
        add_reward(trace, final)
        return read_rollout(rollout(), trace.spans, options=told)

    lesson = learn_from_group([ended(1.0), ended(0.0)], options=told)
    assert [row.scores for row in lesson.rows] == [[0.0, 0.25, 0.0, 0.0, 1.0], [0.0, 0.25, 0.0, 0.0, 0.0]]
    if estimator == "grpo":
        good, worse = (row.answers[1].advantage for row in lesson.rows)
        assert good - worse == pytest.approx(1.0)
