import pytest
from hypothesis import given, strategies as st
from learning_toys import conversation, judged, options, plain, scored, two_choices
from lightning_tokens.learning.advantages import gae, whitened
from lightning_tokens.learning.groups import Lesson, learn_from_group
from lightning_tokens.learning.steps import StepAdvantages, loss_weights, step_advantages


def taken(lesson: Lesson, **more) -> StepAdvantages:
    rows = lesson.rows
    return step_advantages(
        keys=[f"u_{row.session}_{row.index}" for row in rows],
        masks=[row.mask for row in rows],
        answers=[row.packed() for row in rows],
        **more,
    )


def test_an_advantage_stands_at_every_token_of_its_answer_and_nowhere_else():
    told = options(credit="per_call", norm_by_std=False)
    lesson = learn_from_group([judged(0.0, 3.0, told=told), judged(6.0, told=told)], options=told)
    step = taken(lesson, options=told)
    assert plain(step.advantages) == [[-3.0, -3.0, 0.0, 0.0, 0.0], [3.0, 3.0]]
    assert plain(step.returns) == plain(step.advantages)


def test_padded_masks_give_padded_advantages():
    told = options(norm_by_std=False)
    lesson = learn_from_group([scored(1.0), scored(3.0)], options=told)
    step = step_advantages(
        keys=["u_0_0", "u_1_0", "padding_0_0"],
        masks=[[*lesson.rows[0].mask, 0, 0], [*lesson.rows[1].mask, 0, 0], [0]],
        answers=[lesson.rows[0].packed(), lesson.rows[1].packed(), lesson.rows[0].packed()],
        options=told,
    )
    assert plain(step.advantages) == [[-1.0, -1.0, 0.0, 0.0], [1.0, 1.0, 0.0, 0.0], [0.0]]
    assert step.weights == [1.0, 1.0, 0.0]
    assert step.n_rows == 2


def test_a_token_that_the_correction_rejected_has_no_advantage():
    told = options(norm_by_std=False)
    lesson = learn_from_group([scored(1.0), scored(3.0)], options=told)
    answers = [row.packed() for row in lesson.rows]
    step = step_advantages(keys=["u_0_0", "u_1_0"], masks=[[0, 1], [1, 1]], answers=answers, options=told)
    assert plain(step.advantages) == [[0.0, -1.0], [1.0, 1.0]]


def test_a_critic_sees_the_answers_of_a_rollout_as_one_episode_whatever_their_rows():
    told = options(estimator="gae")
    merged = learn_from_group([scored(2.0, *conversation(2), told=told)], options=told)
    apart = options(estimator="gae", level="transition")
    split = learn_from_group([scored(2.0, *conversation(2), told=apart)], options=apart)
    values = [0.5, 0.25, 0.0, 1.0, 0.75]
    one = taken(merged, options=told, values=[values], gamma=0.9, lam=0.8)
    two = taken(split, options=apart, values=[values[:2], values[3:]], gamma=0.9, lam=0.8)
    assert [*two.advantages[0], 0.0, *two.advantages[1]] == pytest.approx(one.advantages[0])
    assert [*two.returns[0], 0.0, *two.returns[1]] == pytest.approx(one.returns[0])


def test_what_comes_in_between_is_no_step_for_a_critic():
    told = options(estimator="gae")
    lesson = learn_from_group([scored(2.0, *conversation(2), told=told)], options=told)
    step = taken(lesson, options=told, values=[[0.5, 0.25, 99.0, 1.0, 0.75]], gamma=0.9, lam=0.8)
    advantages, returns = gae([0.0, 0.0, 0.0, 2.0], [0.5, 0.25, 1.0, 0.75], gamma=0.9, lam=0.8)
    white = whitened(advantages)
    assert plain(step.advantages) == [[*white[:2], 0.0, *white[2:]]]
    assert plain(step.returns) == [[*returns[:2], 0.0, *returns[2:]]]


@pytest.mark.parametrize(
    ("credit", "returns"),
    [
        ("discounted", [3.0, 3.0, 0.0, 2.0, 2.0, 0.0, 2.0, 2.0]),
        ("per_call", [1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 2.0, 2.0]),  # each answer is an episode of its own
    ],
)
def test_a_critic_is_given_each_reward_where_it_came(credit, returns):
    told = options(estimator="gae", credit=credit)
    lesson = learn_from_group([judged(1.0, None, 2.0, told=told)], options=told)
    assert plain(taken(lesson, options=told, values=[[0.0] * 8], gamma=1.0, lam=1.0).returns) == [returns]


def test_a_penalty_is_added_to_the_reward_of_its_token():
    told = options(estimator="gae")
    lesson = learn_from_group([scored(2.0, told=told)], options=told)
    step = taken(lesson, options=told, values=[[0.0, 0.0]], penalties=[[-0.5, -0.25]])
    assert plain(step.returns) == [[1.25, 1.75]]


def test_the_reward_of_an_answer_that_was_rejected_as_a_whole_is_of_the_one_before():
    told = options(estimator="gae", credit="discounted")
    lesson = learn_from_group([judged(1.0, 2.0, told=told)], options=told)
    answers = [lesson.rows[0].packed()]
    step = step_advantages(keys=["u_0_0"], masks=[[1, 1, 0, 0, 0]], answers=answers, options=told, values=[[0.0] * 5])
    assert plain(step.returns) == [[3.0, 3.0, 0.0, 0.0, 0.0]]


CRITIC = options(estimator="gae", credit="discounted")


def test_choices_of_one_call_are_no_steps_of_each_other_for_a_critic():
    lesson = learn_from_group([two_choices(1.0, 2.0, told=CRITIC)], options=CRITIC)
    step = taken(lesson, options=CRITIC, values=[[0.5, 99.0, 1.0], [0.25, 0.75]], gamma=0.9, lam=0.8)
    # The first choice is the token of value 0.5, the second one 0.25 and 0.75; the token of value 1 follows both.
    first, returns_of_first = gae([1.0, 2.0], [0.5, 1.0], gamma=0.9, lam=0.8)
    second, returns_of_second = gae([0.0, 1.0, 2.0], [0.25, 0.75, 1.0], gamma=0.9, lam=0.8)
    assert plain(step.returns) == [[returns_of_first[0], 0.0, returns_of_first[1]], [*returns_of_second[:2]]]
    white = whitened([*first, *second[:2]])  # each token counts once
    assert [*step.advantages[0], *step.advantages[1]] == pytest.approx([white[0], 0.0, *white[1:]])


def test_the_first_choice_follows_the_call_before_in_whatever_order_rows_come():
    keys, answers = ["u_0_0", "u_0_1", "u_0_2"], [[(0, 0, 1, 1.0, None)], *[[(1, 0, 1, 2.0, None)]] * 2]
    values = [[0.0], [0.5], [4.0]]
    for order in ([0, 1, 2], [2, 1, 0]):
        step = step_advantages(
            keys=[keys[place] for place in order],
            masks=[[1]] * 3,
            answers=[answers[place] for place in order],
            options=CRITIC,
            values=[values[place] for place in order],
            lam=0.0,
        )
        returns = dict(zip(order, plain(step.returns), strict=True))
        assert returns == {0: [1.0 + 0.5], 1: [2.0], 2: [2.0]}


@pytest.mark.parametrize(
    ("masks", "returns"),
    [
        ([[1], [1], [0], [1]], [[1 + 2 + 4], [1 + 2 + 4], [0.0], [2 + 4]]),
        ([[1], [1], [0], [0]], [[1 + 2 + 4], [1 + 2 + 4], [0.0], [0.0]]),
        ([[0], [1], [1], [1]], [[0.0], [1 + 2 + 4], [2 + 4], [2 + 4]]),
        ([[0], [0], [1], [0]], [[0.0], [0.0], [2 + 4], [0.0]]),
    ],
)
def test_a_call_is_rejected_as_a_whole_when_all_of_its_choices_are(masks, returns):
    # Two choices of a first call with the reward 1, two of a second one with 2 + 4.
    step = step_advantages(
        keys=[f"u_0_{index}" for index in range(4)],
        masks=masks,
        answers=[[(0, 0, 1, 1.0, None)]] * 2 + [[(1, 0, 1, 6.0, None)]] * 2,
        options=CRITIC,
        values=[[0.0]] * 4,
    )
    assert plain(step.returns) == returns


calls = st.lists(st.tuples(st.integers(-4, 4), st.lists(st.integers(1, 3), min_size=1, max_size=3)), min_size=1)
"""Of each call, its reward and the number of tokens of each of its choices."""


@given(calls, st.randoms(use_true_random=False))
def test_every_choice_is_followed_by_each_reward_from_its_call_on_once(calls, chance):
    rows = [
        (order, reward, n, index) for order, (reward, choices) in enumerate(calls) for index, n in enumerate(choices)
    ]
    chance.shuffle(rows)
    step = step_advantages(
        keys=[f"u_0_{10 * order + index}" for order, _, _, index in rows],
        masks=[[1] * n for _, _, n, _ in rows],
        answers=[[(order, 0, n, float(reward), None)] for order, reward, n, _ in rows],
        options=CRITIC,
        values=[[0.0] * n for _, _, n, _ in rows],
    )
    for (order, _, n, _), returns in zip(rows, plain(step.returns), strict=True):
        assert returns == [sum(reward for reward, _ in calls[order:])] * n


def test_a_critic_without_values_and_a_penalty_without_a_critic_are_refused():
    with pytest.raises(ValueError, match="the estimator 'gae' needs the values of a critic"):
        step_advantages(keys=[], masks=[], answers=[], options=options(estimator="gae"))
    with pytest.raises(ValueError, match="a penalty in the reward needs the estimator 'gae', not 'grpo'"):
        step_advantages(keys=[], masks=[], answers=[], options=options(), penalties=[])


def test_row_by_row_the_advantages_are_left_to_verl_and_the_weights_are_not():
    told = options(advantage="row", estimator="reinforce_plus_plus")
    lesson = learn_from_group([scored(1.0, ([1], [2]), ([7], [8])), scored(3.0, ([1], [2]))], options=told)
    step = taken(lesson, options=told, penalties=[[-0.5]] * 3)
    assert plain(step.advantages) == plain(step.returns) == [[0.0], [0.0], [0.0]]
    assert step.weights == [0.75, 0.75, 1.5]


def test_verls_loss_leaves_all_weights_one():
    told = options(loss="verl", norm_by_std=False)
    lesson = learn_from_group([scored(1.0, ([1], [2]), ([7], [8])), scored(3.0)], options=told)
    assert taken(lesson, options=told).weights == [1.0, 1.0, 1.0]


rollouts = st.lists(st.lists(st.lists(st.booleans(), min_size=1, max_size=5), min_size=1, max_size=3), min_size=1)


@given(rollouts, st.integers(0, 4))
def test_each_rollout_weighs_the_same_and_each_token_within_it(rollouts, padding):
    keys = [f"u_{session}_{index}" for session, rows in enumerate(rollouts) for index in range(len(rows))]
    masks = [[int(kept) for kept in row] for rows in rollouts for row in rows]
    keys += [f"pad_{place}_0" for place in range(padding)]
    masks += [[0]] * padding
    weights = loss_weights(keys, masks)
    n_rows = sum(map(any, masks))
    masses: dict[str, float] = {}
    tokens: dict[str, set[float]] = {}
    for key, mask, weight in zip(keys, masks, weights, strict=True):
        if any(mask):
            owner = key.rpartition("_")[0]
            masses[owner] = masses.get(owner, 0.0) + weight / n_rows  # the mean over rows of a mean over tokens
            tokens.setdefault(owner, set()).add(round(weight / sum(mask), 9))
        else:
            assert weight == 0.0
    assert list(masses.values()) == pytest.approx([1 / len(masses)] * len(masses) if masses else [])
    assert all(len(each) == 1 for each in tokens.values())


def test_without_rows_there_are_no_weights():
    assert loss_weights([], []) == []
    assert loss_weights(["u_0_0"], [[0, 0]]) == [0.0]
